// The names of files that hold another one, compressed: NAME.dspack and NAME.zst hold NAME.
//
// Whoever asks for NAME gets its bytes, whichever of the three is there.
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

// By the end of the name alone.
Encoding encoding_of(const std::filesystem::path& stored);
// `stored` without .dspack or .zst: what lists of files should show and take apart.
std::filesystem::path content_path(const std::filesystem::path& stored);

// The file that holds `content`: itself if that is there, else it with .dspack or .zst; nullopt if
// none of them is there. A name that ends so is meant as it is, too.
std::optional<std::filesystem::path> stored_path(const std::filesystem::path& content);
// Whether there is one.
bool is_stored(const std::filesystem::path& content);
// Throws InconsistentError if there is more than one, for who finds files by listing a folder.
void refuse_two_forms(const std::filesystem::path& content);

}  // namespace dsckpt
