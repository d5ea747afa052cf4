#include "io/content_name.h"

#include <array>
#include <string>
#include <system_error>
#include <utility>

#include "codec/packed_index.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

std::array<fs::path, 3> forms_of(const fs::path& content) {
  std::array<fs::path, 3> forms{content, content, content};
  forms[1] += kPackedSuffix;
  forms[2] += kZstdSuffix;
  return forms;
}

}  // namespace

Encoding encoding_of(const fs::path& stored) {
  const fs::path ending = stored.extension();  // ".zst" alone has no extension
  if (ending == kPackedSuffix) return Encoding::packed;
  return ending == kZstdSuffix ? Encoding::zstd : Encoding::plain;
}

fs::path content_path(const fs::path& stored) {
  return encoding_of(stored) == Encoding::plain ? stored : fs::path(stored).replace_extension();
}

std::optional<fs::path> stored_path(const fs::path& content) {
  std::error_code failed;
  for (const fs::path& path : forms_of(content)) {
    if (fs::exists(path, failed)) return path;
  }
  return std::nullopt;
}

bool is_stored(const fs::path& content) {
  return stored_path(content).has_value();
}

void refuse_two_forms(const fs::path& content) {
  std::error_code failed;
  std::string first;
  for (const fs::path& path : forms_of(content)) {
    if (!fs::exists(path, failed)) continue;
    const std::string name = path.filename().string();
    if (!first.empty()) {
      throw InconsistentError({.file = content.string()}, "exists as " + first + " and as " + name)
          .with_hint("leave one of them in the folder");
    }
    first = name;
  }
}

}  // namespace dsckpt
