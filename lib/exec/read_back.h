// Reading back: what was written is read from the disk, and compared with what was meant.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "exec/reading.h"

namespace dsckpt {

// What was meant to be in a file.
struct MeantFile {
  std::filesystem::path path = {};  // where it is now
  std::string display = {};         // what an error calls it

  struct Piece {
    uint64_t begin = 0;
    uint64_t size = 0;
    uint32_t crc = 0;  // with zeros where patches are (crc32_unpatched)
  };
  std::vector<Piece> pieces = {};             // rising
  std::vector<uint64_t> patches = {};         // rising
  std::map<uint64_t, uint32_t> patched = {};  // what is there, of those that were written
};

// Reads from the disk, where the file system lets it, and not from the page cache: the files must
// have been synced. All ranks of a group read, each at its part of `limit_rate` (bytes a second; 0:
// no limit). Adds to progress.bytes_total; returns how many bytes were read. Throws IoError for
// what is not as it was meant, InterruptedError, and what dispatch() throws of lost ranks.
uint64_t read_back(std::span<const MeantFile> files, uint64_t limit_rate, const Reading& reading);

// A rank's part of it: what comes of a task.
std::string read_back_for_group(std::string_view task, uint64_t limit_rate, unsigned threads,
                                Progress& progress);

}  // namespace dsckpt
