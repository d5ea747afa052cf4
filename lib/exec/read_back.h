// Reads the output back from the disk, and compares it with the planned bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "exec/output_sums.h"
#include "exec/reading.h"

namespace dsckpt {

// Reads from the disk where the file system allows it, and not from the page cache: the files must
// have been synced. All ranks of a group read, each with its part of `limit_rate` (bytes a second;
// 0: no limit). Adds to progress.bytes_total; returns the number of bytes read. Throws IoError for
// bytes that differ, InterruptedError, and the errors of dispatch() for lost ranks.
uint64_t read_back(std::span<const MeantFile> files, uint64_t limit_rate, const Reading& reading);

// A rank's part of it: the result of a task.
std::string read_back_for_group(std::string_view task, uint64_t limit_rate, unsigned threads,
                                Progress& progress);

}  // namespace dsckpt
