// The names of compressed files: NAME.dspack and NAME.zst hold the file NAME.
//
// A reader of NAME gets its bytes from any of the three files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace dsckpt {

enum class Encoding : uint8_t {
  plain,
  packed,  // by ckpt-pack (codec/packed_index.h)
  zstd,    // by zstd(1) or pzstd(1)
};
inline constexpr std::string_view kZstdSuffix = ".zst";

// Decided by the end of the name alone.
Encoding encoding_of(const std::filesystem::path& stored);
// `stored` without .dspack or .zst: the name to show in lists of files, and to parse.
std::filesystem::path content_path(const std::filesystem::path& stored);

// The file that holds `content`: `content` itself if it exists, else the one with .dspack or .zst;
// nullopt if there is none. A name with such an end can also be the content's own.
std::optional<std::filesystem::path> stored_path(const std::filesystem::path& content);
// True if there is such a file.
bool is_stored(const std::filesystem::path& content);
// Throws InconsistentError if there are several, for callers that list a folder to find files.
void refuse_two_forms(const std::filesystem::path& content);

}  // namespace dsckpt
