#include "checkpoint/tag_folder.h"

#include <algorithm>
#include <system_error>
#include <tuple>

#include "base/bytes.h"
#include "base/error.h"
#include "io/input_file.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kMaxTagBytes = 4096;

std::vector<fs::directory_entry> list(const fs::path& folder) {
  std::error_code failed;
  fs::directory_iterator it(folder, failed);
  if (failed) throw IoError({.file = folder.string()}, "cannot list", failed.value());
  std::vector<fs::directory_entry> entries;
  for (const fs::directory_iterator end; it != end; it.increment(failed)) {
    if (failed) throw IoError({.file = folder.string()}, "cannot list", failed.value());
    entries.push_back(*it);
  }
  return entries;
}

std::vector<ShardFile> list_shards(const fs::path& folder) {
  std::vector<ShardFile> shards;
  for (const fs::directory_entry& entry : list(folder)) {
    if (const auto name = parse_shard_name(entry.path().filename().string())) {
      shards.push_back({*name, entry.path()});
    }
  }
  std::sort(shards.begin(), shards.end(), [](const ShardFile& a, const ShardFile& b) {
    return std::tie(a.name.kind, a.name.mp_rank, a.name.dp_rank, a.path) <
           std::tie(b.name.kind, b.name.mp_rank, b.name.dp_rank, b.path);
  });
  return shards;
}

// The tag that `latest` names, checked to be a plain relative path.
std::string read_latest(const fs::path& path) {
  const InputFile file(path);
  if (file.size() > kMaxTagBytes) {
    throw CorruptError({.file = path.string()}, "is too long to be the name of a tag");
  }
  const std::vector<std::byte> bytes = file.read(0, file.size());
  std::string_view text = as_text(bytes);
  const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  while (!text.empty() && (is_space(text.back()) || text.back() == '/')) text.remove_suffix(1);
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  const fs::path tag(text);
  const bool leaves = std::any_of(tag.begin(), tag.end(), [](const auto& p) { return p == ".."; });
  if (text.empty() || text.find('\0') != text.npos || tag.is_absolute() || leaves) {
    throw CorruptError({.file = path.string()}, "does not hold the name of a tag");
  }
  return std::string(text);
}

// " (there are: a, b)", for a folder that is not what was hoped.
std::string whats_there(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : list(folder)) {
    std::error_code ignored;
    if (entry.is_directory(ignored)) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  if (names.empty()) return " (it has no folders)";
  std::string text = " (folders there: ";
  for (size_t i = 0; i < names.size() && i < 8; ++i) text += (i == 0 ? "" : ", ") + names[i];
  return text + (names.size() > 8 ? ", ...)" : ")");
}

// Files are named relative to the folder above the tag's, so that one has to have a name: not
// "global_step10/" and not ".".
fs::path with_name(const fs::path& path) {
  fs::path named = path;
  if (!named.has_filename()) named = named.parent_path();
  if (named.filename() != "." && named.filename() != "..") return named;
  named = fs::absolute(named).lexically_normal();
  return named.has_filename() ? named : named.parent_path();
}

}  // namespace

std::vector<ShardFile> TagFolder::of_kind(ShardName::Kind kind) const {
  std::vector<ShardFile> out;
  for (const ShardFile& shard : shards) {
    if (shard.name.kind == kind) out.push_back(shard);
  }
  return out;
}

bool has_shards(const fs::path& folder) {
  std::error_code failed;
  fs::directory_iterator it(folder, failed);
  for (const fs::directory_iterator end; !failed && it != end; it.increment(failed)) {
    if (parse_shard_name(it->path().filename().string())) return true;
  }
  return false;
}

TagFolder find_tag_folder(const fs::path& given, const std::string& tag) {
  std::error_code failed;
  const fs::file_status status = fs::status(given, failed);
  if (status.type() == fs::file_type::not_found) {
    throw UsageError(given.string() + ": there is no such folder");
  }
  const fs::path path = with_name(given);
  if (failed) throw IoError({.file = path.string()}, "cannot open", failed.value());
  if (!fs::is_directory(status)) {
    throw InconsistentError({.file = path.string()}, "is a file; a checkpoint is a folder");
  }

  fs::path latest = path / "latest";
  if (!fs::exists(latest, failed)) latest = path / "latest_universal";
  TagFolder folder;
  if (!tag.empty()) {
    folder = {path / tag, tag, {}};
  } else if (fs::exists(latest, failed)) {
    const std::string named = read_latest(latest);
    folder = {path / named, named, {}};
    if (!fs::is_directory(folder.path, failed)) {
      throw InconsistentError(
          {.file = latest.string()},
          "names the tag '" + named + "', which is not there" + whats_there(path));
    }
  } else {
    fs::path named = fs::absolute(path).lexically_normal();
    if (!named.has_filename()) named = named.parent_path();  // "ckpt/global_step10/"
    folder = {path, named.filename().string(), {}};
  }
  if (!fs::is_directory(folder.path, failed)) {
    throw InconsistentError({.file = folder.path.string()},
                            "there is no such tag" + whats_there(path));
  }
  folder.shards = list_shards(folder.path);
  if (folder.shards.empty()) {
    throw std::move(InconsistentError({.file = folder.path.string()},
                                      "holds no DeepSpeed shards" + whats_there(folder.path)))
        .with_hint("give the folder that has the file `latest`, or --tag");
  }
  return folder;
}

}  // namespace dsckpt
