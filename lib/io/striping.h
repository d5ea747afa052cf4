// Striping: over how many disks of a Lustre file system the files of a folder are spread.
#pragma once

#include <filesystem>

#include "dsckpt/run.h"
#include "io/folder.h"

namespace dsckpt {

// Whether set_striping() could work for what is made at `path`: throws UsageError if it is not on
// Lustre, or `lfs` is not in PATH.
void check_can_stripe(const std::filesystem::path& path);

// Has all files that will be made in `folder`, and in folders that will be made there, striped like
// that (`lfs setstripe`). `striping.bytes` is not 0. Throws IoError with what it says.
void set_striping(const Folder& folder, const Striping& striping);

}  // namespace dsckpt
