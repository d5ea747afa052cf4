#include "checkpoint/tag_folder.h"

#include <algorithm>
#include <map>
#include <optional>
#include <system_error>
#include <tuple>

#include "base/bytes.h"
#include "base/text.h"
#include "checkpoint/dcp_folder.h"
#include "checkpoint/nearest_checkpoint.h"
#include "dsckpt/error.h"
#include "format/zip.h"
#include "io/far_files.h"
#include "io/input_file.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kMaxTagBytes = 4096;

std::vector<fs::directory_entry> list(const fs::path& folder) {
  std::error_code failed;
  fs::directory_iterator it(folder, failed);
  if (failed) throw cannot_list(folder, failed);
  std::vector<fs::directory_entry> entries;
  for (const fs::directory_iterator end; it != end; it.increment(failed)) {
    if (failed) throw cannot_list(folder, failed);
    entries.push_back(*it);
  }
  return entries;
}

void sort_shards(std::vector<ShardFile>& shards) {
  const auto order = [](const ShardFile& shard) {
    return std::tuple(shard.name.kind, shard.name.mp_rank, shard.name.dp_rank,
                      shard.path.filename());
  };
  std::sort(shards.begin(), shards.end(),
            [&](const ShardFile& a, const ShardFile& b) { return order(a) < order(b); });
}

std::vector<ShardFile> list_shards(const fs::path& folder) {
  std::vector<ShardFile> shards;
  for (const fs::directory_entry& entry : list(folder)) {
    const fs::path path = content_path(entry.path());
    if (const auto name = parse_shard_name(path.filename().string())) {
      shards.push_back({*name, path});
    }
  }
  sort_shards(shards);
  const auto twice =
      std::adjacent_find(shards.begin(), shards.end(),
                         [](const ShardFile& a, const ShardFile& b) { return a.path == b.path; });
  if (twice != shards.end()) refuse_two_forms(twice->path);
  return shards;
}

// "a, b, c", of the folders in one; "" if there are none.
std::string names_of_folders(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : list(folder)) {
    std::error_code ignored;
    if (entry.is_directory(ignored)) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  std::string text;
  for (size_t i = 0; i < names.size() && i < 8; ++i) text += (i == 0 ? "" : ", ") + names[i];
  return text + (names.size() > 8 ? ", ..." : "");
}

// " (folders there: a, b)", for a folder that is not what was hoped.
std::string whats_there(const fs::path& folder) {
  const std::string names = names_of_folders(folder);
  return names.empty() ? " (it has no folders)" : " (folders there: " + names + ")";
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

// The records of a zip with their CRC32s; nullopt for what is no zip with checksums.
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

bool are_copies(const fs::path& path_a, const fs::path& path_b) {
  const InputFile a(path_a);
  const InputFile b(path_b);
  if (a.size() != b.size()) return false;
  const auto records_a = checksums(a);
  const auto records_b = checksums(b);
  return records_a && records_b ? *records_a == *records_b : same_bytes(a, b);
}

// The tag's folder in another root.
fs::path find_in_root(const fs::path& root, const std::string& tag, bool tag_was_given) {
  std::error_code failed;
  if (!fs::is_directory(root, failed)) throw no_such_folder(root);
  const auto latest = latest_in(root);
  if (!tag_was_given && latest) {
    if (const std::string named = tag_named_by(*latest); named != tag) {
      throw InconsistentError(
          {.file = latest->string()},
          "names the tag '" + named + "', in the first root it is '" + tag + "'")
          .with_hint("--tag says which one to read");
    }
  }
  if (fs::is_directory(root / tag, failed)) return with_name(root / tag);
  if (has_shards(root)) return with_name(root);
  throw InconsistentError({.file = shown_path(root)},
                          "has no folder of the tag '" + tag + "'" + whats_there(root));
}

// Whether it is another node's folder in which no rank of that tag has left a file. (Nobody has
// asked for it by name.)
bool is_of_nobody(const fs::path& root, const std::string& tag) {
  std::error_code failed;
  if (!is_far(root)) return false;
  return !has_shards(fs::is_directory(root / tag, failed) ? root / tag : root);
}

void add_root(TagFolder& folder, const fs::path& other) {
  std::error_code failed;
  const auto is_other = [&](const fs::path& known) { return fs::equivalent(known, other, failed); };
  if (is_other(folder.path) ||
      std::any_of(folder.other_roots.begin(), folder.other_roots.end(), is_other)) {
    throw UsageError(other.string() + ": is given twice");
  }
  folder.other_roots.push_back(other);
  const std::vector<ShardFile> shards = list_shards(other);
  if (shards.empty()) {
    throw InconsistentError({.file = shown_path(other)},
                            "holds no DeepSpeed shards" + whats_there(other));
  }
  std::map<std::string, fs::path> known;
  for (const ShardFile& shard : folder.shards) known.emplace(shard.path.filename(), shard.path);
  for (const ShardFile& shard : shards) {
    const auto found = known.find(shard.path.filename());
    if (found == known.end()) {
      folder.shards.push_back(shard);
    } else if (!are_copies(found->second, shard.path)) {
      throw InconsistentError({.file = shown_path(shard.path)},
                              "is not the same as " + shown_path(found->second) +
                                  ": two files of one rank, perhaps of two saves");
    }
  }
}

}  // namespace

std::string tag_named_by(const fs::path& path) {
  const InputFile file(path);
  if (file.size() > kMaxTagBytes) {
    throw CorruptError({.file = shown_path(path)}, "is too long to be the name of a tag");
  }
  const std::vector<std::byte> bytes = file.read(0, file.size());
  std::string_view text = as_text(bytes);
  const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // of an editor
  while (!text.empty() && (is_space(text.back()) || text.back() == '/')) text.remove_suffix(1);
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  const fs::path tag(text);
  const bool leaves = std::any_of(tag.begin(), tag.end(), [](const auto& p) { return p == ".."; });
  if (text.empty() || text.find('\0') != text.npos || tag.is_absolute() || leaves) {
    throw CorruptError({.file = shown_path(path)}, "does not hold the name of a tag");
  }
  return std::string(text);
}

fs::path TagFolder::display_root() const {
  return other_roots.empty() ? path.parent_path() : fs::path();
}

std::string TagFolder::display(const fs::path& file) const {
  return other_roots.empty() ? file.lexically_relative(display_root()).string() : shown_path(file);
}

std::vector<ShardFile> TagFolder::of_kind(ShardName::Kind kind) const {
  std::vector<ShardFile> out;
  for (const ShardFile& shard : shards) {
    if (shard.name.kind == kind) out.push_back(shard);
  }
  return out;
}

namespace {

// Whether the file `latest` names the tag.
bool is_tag_of(const fs::path& latest, const std::string& tag) {
  try {
    return tag_named_by(latest) == tag;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::string cure_of(const TagFolder& folder, const std::optional<ShardName>& lost, bool missing) {
  std::string path = shell_word((folder.named.empty() ? folder.path : folder.named).string());
  const auto latest = latest_in(folder.named);
  if (folder.path == folder.named / folder.tag && !(latest && is_tag_of(*latest, folder.tag))) {
    path += " --tag " + shell_word(folder.tag);
  }
  std::string text = "`ckpt-inspect verify " + path + "` lists everything that is wrong";
  const bool has_others = lost &&
                          (lost->kind == ShardName::Kind::optim_states ||
                           lost->kind == ShardName::Kind::zero_model_states) &&
                          folder.has(ShardName::Kind::optim_states);
  if (has_others) {
    text += "; `zero-to-fp32 " + path + " OUT --allow-missing` writes the tensors that are whole";
  }
  if (folder.path == folder.named / folder.tag) {
    std::string paths;
    constexpr size_t kShown = 4;
    const std::vector<fs::path> others = other_tags(folder.named, folder.tag);
    for (size_t i = 0; i < std::min(others.size(), kShown); ++i) {
      paths += (i == 0 ? "" : ", ") + shell_word(others[i].string());
    }
    if (!others.empty()) {
      text += "; other checkpoints there: " + paths + (others.size() > kShown ? ", ..." : "");
    }
  }
  if (missing) text += "; --root DIR reads the files that another node has kept, too";
  return text;
}

IoError cannot_list(const fs::path& folder, const std::error_code& failed) {
  return {{.file = shown_path(folder)}, "cannot list", failed.value()};
}

bool has_shards(const fs::path& folder) {
  std::error_code failed;
  fs::directory_iterator it(folder, failed);
  for (const fs::directory_iterator end; !failed && it != end; it.increment(failed)) {
    if (parse_shard_name(content_path(it->path()).filename().string())) return true;
  }
  const bool is_none =
      failed == std::errc::no_such_file_or_directory || failed == std::errc::not_a_directory;
  if (failed && !is_none) throw cannot_list(folder, failed);
  return is_dcp_folder(folder);
}

void refuse_other_roots(const TagFolder& universal) {
  if (universal.other_roots.empty()) return;
  throw UnsupportedError({.file = shown_path(universal.path)},
                         "is a universal checkpoint, which is one folder: it has no other roots");
}

namespace {

// Of one that is not there: a path, since not every checkpoint that is opened has an option for its
// tag.
std::string tags_hint(const fs::path& path, const std::string& tag) {
  const std::vector<fs::path> tags = other_tags(path, tag);
  if (tags.empty()) return "no folder there holds DeepSpeed's shards";
  return "give " + shell_word(tags.front().string()) + " instead: the newest that is there";
}

TagFolder dcp_tag_folder(TagFolder folder, const std::vector<fs::path>& roots) {
  if (!roots.empty()) {
    throw UnsupportedError({.file = shown_path(folder.path)},
                           "is of torch.distributed.checkpoint, which is one folder: it has no "
                           "other roots");
  }
  DcpFolder found = dcp_folder(folder.path);
  if (found.path != folder.path) {  // the model's own within it was given
    folder.path = with_name(found.path);
    folder.tag = folder.path.filename().string();
  }
  folder.dcp_metadata = std::move(found.metadata);
  return folder;
}

// Where `path` is the one that a user means.
TagFolder find_exactly(const fs::path& given, const std::string& tag,
                       const std::vector<fs::path>& roots) {
  std::error_code failed;
  const fs::file_status status = fs::status(given, failed);
  if (status.type() == fs::file_type::not_found) {
    throw no_such_folder(given);
  }
  const fs::path path = with_name(given);
  if (failed) throw IoError({.file = shown_path(path)}, "cannot open", failed.value());
  if (!fs::is_directory(status)) {
    throw InconsistentError({.file = shown_path(path)}, "is a file; a checkpoint is a folder")
        .with_hint("give the folder that has the file `latest`");
  }

  const std::optional<fs::path> latest = latest_in(path);
  TagFolder folder;
  if (!tag.empty()) {
    folder = {path / tag, tag, {}};
  } else if (latest) {
    const std::string named = tag_named_by(*latest);
    folder = {path / named, named, {}};
    if (!fs::is_directory(folder.path, failed)) {
      throw InconsistentError(
          {.file = latest->string()},
          "names the tag '" + named + "', which is not there" + whats_there(path))
          .with_hint(tags_hint(path, named));
    }
  } else {
    fs::path named = fs::absolute(path).lexically_normal();
    if (!named.has_filename()) named = named.parent_path();  // "ckpt/global_step10/"
    folder = {path, named.filename().string(), {}};
  }
  if (!fs::is_directory(folder.path, failed)) {
    throw InconsistentError({.file = shown_path(folder.path)},
                            "there is no such tag" + whats_there(path))
        .with_hint(tags_hint(path, tag));
  }
  folder.shards = list_shards(folder.path);
  if (folder.shards.empty() && is_dcp_folder(folder.path)) {
    return dcp_tag_folder(std::move(folder), roots);
  }
  if (folder.shards.empty() && !dcp_data_files(folder.path).empty()) {
    throw InconsistentError({.file = shown_path(folder.path)},
                            "has files of torch.distributed.checkpoint and no .metadata, which is "
                            "written last: the save did not finish, or it was lost")
        .with_hint("an older save, or a copy of .metadata, is needed");
  }
  if (folder.shards.empty()) {
    throw InconsistentError({.file = shown_path(folder.path)},
                            "holds no DeepSpeed shards" + whats_there(folder.path))
        .with_hint(latest || !tag.empty()
                       ? tags_hint(path, folder.tag)
                       : "give the folder that has the file `latest`, or a tag's own");
  }
  for (const fs::path& root : roots) {
    if (is_of_nobody(root, folder.tag)) continue;
    add_root(folder, find_in_root(root, folder.tag, !tag.empty()));
  }
  sort_shards(folder.shards);
  return folder;
}

}  // namespace

TagFolder find_tag_folder(const fs::path& path, const std::string& tag,
                          const std::vector<fs::path>& roots) {
  std::error_code failed;
  const bool exists = fs::exists(path, failed);
  const auto nearest = exists ? nearest_checkpoint(with_name(path), tag) : std::nullopt;
  const fs::path& named = nearest ? nearest->path : path;
  TagFolder folder = find_exactly(named, nearest ? nearest->tag : tag, roots);
  folder.named = named;
  if (nearest) folder.note = nearest->note;
  if (nearest) folder.older = nearest->older;
  return folder;
}

UsageError no_such_folder(const fs::path& path) {
  if (path.empty()) return UsageError("an empty text is no path");
  UsageError error(path.string() + ": there is no such folder");
  fs::path above = fs::path(path).parent_path();
  std::error_code failed;
  while (!above.empty() && !fs::is_directory(above, failed)) above = above.parent_path();
  const fs::path listed = above.empty() ? fs::path(".") : above;
  fs::directory_iterator(listed, failed);
  if (failed) return error;
  const std::string names = names_of_folders(listed);
  const std::string where = above.empty() ? "here" : "in " + above.string();
  return std::move(error).with_hint(names.empty() ? "there are no folders " + where
                                                  : "folders " + where + ": " + names);
}

}  // namespace dsckpt
