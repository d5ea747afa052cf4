// Whether files are copies of each other.
#pragma once

#include <filesystem>

namespace dsckpt {

// Whether both have the same bytes, by the names, sizes and CRC32s of all records of archives. Any
// other files are compared. Throws IoError and CorruptError.
bool are_copies(const std::filesystem::path& a, const std::filesystem::path& b);

// Whether each file of `folder` that is a shard or a file of DCP is a copy of the one of the same
// name in `whole`: where both are one folder, or `folder` is a copy that may lack some. False for
// folders with nothing in common, and where something cannot be read.
bool are_copies_of_files(const std::filesystem::path& folder, const std::filesystem::path& whole);

}  // namespace dsckpt
