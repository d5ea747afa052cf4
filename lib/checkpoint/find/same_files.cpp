#include "checkpoint/find/same_files.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "checkpoint/find/folders.h"
#include "checkpoint/find/rank_name.h"
#include "checkpoint/find/saved_states.h"
#include "deepspeed/shard_name.h"
#include "dsckpt/error.h"
#include "format/zip.h"
#include "io/content_name.h"
#include "io/input_file.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

// The records of a zip with their CRC32s; nullopt for files that are not zips with checksums.
std::optional<std::vector<std::tuple<std::string, uint64_t, uint32_t>>> checksums(
    const InputFile& file) {
  if (!ZipReader::probe(file)) return std::nullopt;
  const ZipReader zip = ZipReader::open(file, 0);
  if (!zip.has_checksums()) return std::nullopt;
  std::vector<std::tuple<std::string, uint64_t, uint32_t>> found;
  for (const ZipEntry& entry : zip.entries()) {
    found.emplace_back(entry.name, entry.size, entry.crc32);
  }
  return found;
}

bool same_bytes(const InputFile& a, const InputFile& b) {
  constexpr uint64_t kBlock = 1 << 20;
  for (uint64_t at = 0; at < a.size(); at += kBlock) {
    const uint64_t size = std::min(kBlock, a.size() - at);
    if (a.read(at, size) != b.read(at, size)) return false;
  }
  return true;
}

bool is_of_state(const fs::path& file) {
  const std::string name = file.filename().string();
  return parse_shard_name(name) || is_dcp_name(name) || parse_rank_name(name);
}

}  // namespace

bool are_copies(const fs::path& path_a, const fs::path& path_b) {
  const InputFile a(path_a);
  const InputFile b(path_b);
  if (a.size() != b.size()) return false;
  const auto records_a = checksums(a);
  const auto records_b = checksums(b);
  return records_a && records_b ? *records_a == *records_b : same_bytes(a, b);
}

bool have_same_values(const fs::path& a, const fs::path& b) {
  std::error_code failed;
  if (fs::equivalent(a, b, failed)) return true;
  // Records are called by the archive's own name: "last/data/0".
  const auto values = [](const fs::path& path) {
    std::vector<std::tuple<std::string, uint64_t, uint32_t>> found;
    for (auto& [name, size, crc] : checksums(InputFile(path)).value_or(decltype(found){})) {
      const size_t data = name.find("/data/");
      if (data != name.npos) found.emplace_back(name.substr(data), size, crc);
    }
    std::sort(found.begin(), found.end());
    return found;
  };
  try {
    const auto of_a = values(a);
    return !of_a.empty() && of_a == values(b);
  } catch (const Error&) {
    return false;
  }
}

bool are_copies_of_files(const fs::path& folder, const fs::path& whole) {
  std::error_code failed;
  if (fs::equivalent(folder, whole, failed)) return true;
  try {
    Folders folders;
    bool has_some = false;
    for (const fs::path& file : folders[folder].files) {
      if (!is_of_state(file)) continue;
      const fs::path other = whole / file.filename();
      if (!is_stored(other) || !are_copies(file, other)) return false;
      has_some = true;
    }
    return has_some;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace dsckpt
