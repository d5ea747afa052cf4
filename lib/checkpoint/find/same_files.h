// Tests if files are copies of each other.
#pragma once

#include <filesystem>

namespace dsckpt {

// True if both have the same bytes, by the names, sizes and CRC32s of all records of archives. Any
// other files are compared. Throws IoError and CorruptError.
bool are_copies(const std::filesystem::path& a, const std::filesystem::path& b);

// True if the tensors in both archives of torch have the same bytes, by sizes and CRC32s, whatever
// else they hold. False if something cannot be read.
bool have_same_values(const std::filesystem::path& a, const std::filesystem::path& b);

// True if each shard or DCP file of `folder` is a copy of the file of the same name in `whole`. So
// both are one folder, or `folder` is a copy that may lack some files. False for folders with
// nothing in common, and if something cannot be read.
bool are_copies_of_files(const std::filesystem::path& folder, const std::filesystem::path& whole);

}  // namespace dsckpt
