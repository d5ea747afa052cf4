// Striping: the number of disks of a Lustre file system that a folder's files are spread over.
#pragma once

#include <filesystem>

#include "dsckpt/run.h"
#include "io/folder.h"

namespace dsckpt {

// Throws UsageError if set_striping() cannot work at `path`: it is not on Lustre, or `lfs` is not
// in PATH.
void check_can_stripe(const std::filesystem::path& path);

// Stripes all files that will be made in `folder`, or in folders made there later (`lfs
// setstripe`). `striping.bytes` is not 0. Throws IoError with the message of `lfs`.
void set_striping(const Folder& folder, const Striping& striping);

}  // namespace dsckpt
