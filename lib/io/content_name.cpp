#include "io/content_name.h"

#include <system_error>

#include "codec/packed_index.h"

namespace dsckpt {
namespace fs = std::filesystem;

Encoding encoding_of(const fs::path& stored) {
  const std::string_view name = stored.native();
  if (name.ends_with(kPackedSuffix)) return Encoding::packed;
  return name.ends_with(kZstdSuffix) ? Encoding::zstd : Encoding::plain;
}

fs::path content_path(const fs::path& stored) {
  return encoding_of(stored) == Encoding::plain ? stored : fs::path(stored).replace_extension();
}

std::optional<fs::path> stored_path(const fs::path& content) {
  std::error_code failed;
  for (const std::string_view suffix : {std::string_view(), kPackedSuffix, kZstdSuffix}) {
    fs::path path = content;
    path += suffix;
    if (fs::exists(path, failed)) return path;
  }
  return std::nullopt;
}

bool is_stored(const fs::path& content) {
  return stored_path(content).has_value();
}

}  // namespace dsckpt
