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
// have been synced. All ranks of a run read, each with its part of `limit_rate` (bytes a second;
// 0: no limit). Adds to progress.bytes_total; returns the number of bytes read. Throws IoError for
// bytes that differ, InterruptedError, and the errors of ranks that cannot read.
uint64_t read_back(std::span<const MeantFile> files, uint64_t limit_rate, const Reading& reading);

// Does a PieceTask of it.
std::string read_back_for_rank(std::string_view task, unsigned threads, Progress& progress);

}  // namespace dsckpt
