// Reading back: what was written is read from the disk, and compared with what was meant.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "exec/output_sums.h"
#include "exec/reading.h"

namespace dsckpt {

// Reads from the disk, where the file system lets it, and not from the page cache: the files must
// have been synced. All ranks of a group read, each at its part of `limit_rate` (bytes a second; 0:
// no limit). Adds to progress.bytes_total; returns how many bytes were read. Throws IoError for
// what is not as it was meant, InterruptedError, and what dispatch() throws of lost ranks.
uint64_t read_back(std::span<const MeantFile> files, uint64_t limit_rate, const Reading& reading);

// A rank's part of it: what comes of a task.
std::string read_back_for_group(std::string_view task, uint64_t limit_rate, unsigned threads,
                                Progress& progress);

}  // namespace dsckpt
