#include "checkpoint/nearest_checkpoint.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <iterator>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "checkpoint/dcp_folder.h"
#include "checkpoint/tag_folder.h"
#include "deepspeed/shard_name.h"
#include "dsckpt/error.h"
#include "io/input_file.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr std::array<const char*, 2> kLatest{"latest", "latest_universal"};
constexpr int kLevels = 3;          // Lightning: version_0/checkpoints/epoch=0-step=10.ckpt
constexpr size_t kFolders = 20000;  // of a folder that is no output of a training

// Throws IoError: the newest may be in what cannot be listed.
std::vector<fs::path> folders_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code failed;
  fs::directory_iterator it(folder, failed);
  for (const fs::directory_iterator end; !failed && it != end; it.increment(failed)) {
    std::error_code ignored;
    const std::string name = it->path().filename().string();
    if (!name.starts_with(".") && it->is_directory(ignored)) found.push_back(it->path());
  }
  if (failed && failed != std::errc::no_such_file_or_directory) {
    throw cannot_list(folder, failed)
        .with_hint("if it is not the one that is meant, give the folder of the one that is");
  }
  std::sort(found.begin(), found.end());
  return found;
}

// Those below a folder that is none itself.
class Search {
 public:
  std::vector<fs::path> below(const fs::path& folder, int levels) {
    std::vector<fs::path> found;
    for (const fs::path& child : folders_in(folder)) {
      if (++seen_ > kFolders) break;
      if (latest_in(child) || has_shards(child)) {
        found.push_back(child);
      } else if (levels > 1) {
        const std::vector<fs::path> deeper = below(child, levels - 1);
        found.insert(found.end(), deeper.begin(), deeper.end());
      }
    }
    return found;
  }

 private:
  size_t seen_ = 0;
};

// A name taken apart: "epoch=3-step=20.ckpt" is {3, 20} and "epoch=-step=.ckpt".
std::pair<std::vector<uint64_t>, std::string> numbers_in(const std::string& name) {
  std::vector<uint64_t> numbers;
  std::string rest;
  const char* const end = name.data() + name.size();
  for (const char* at = name.data(); at < end;) {
    uint64_t number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    if (next == at) {
      rest += *at++;
    } else {
      numbers.push_back(error == std::errc() ? number : UINT64_MAX);
      at = next;
    }
  }
  return {std::move(numbers), std::move(rest)};
}

// Sorted, the newest last.
void sort_by_age(std::vector<fs::path>& siblings) {
  const auto parts = [](const fs::path& path) { return numbers_in(path.filename().string()); };
  const std::string rest = parts(siblings.front()).second;
  const bool are_alike = std::all_of(siblings.begin(), siblings.end(), [&](const fs::path& path) {
    return parts(path).second == rest;
  });
  std::sort(siblings.begin(), siblings.end(), [&](const fs::path& a, const fs::path& b) {
    if (are_alike) return parts(a).first < parts(b).first;
    std::error_code ignored;
    return std::tuple(fs::last_write_time(a, ignored), a) <
           std::tuple(fs::last_write_time(b, ignored), b);
  });
}

std::string listed_paths(const std::vector<fs::path>& paths, const fs::path& above) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(paths.size(), kShown); ++i) {
    text += (i == 0 ? "" : ", ") + paths[i].lexically_relative(above).string();
  }
  return text + (paths.size() > kShown ? ", ..." : "");
}

// Those below `path`, the newest last.
std::vector<fs::path> siblings_below(const fs::path& path) {
  std::vector<fs::path> found = Search().below(path, kLevels);
  if (found.empty()) return found;
  const bool are_siblings = std::all_of(found.begin(), found.end(), [&](const fs::path& each) {
    return each.parent_path() == found.front().parent_path();
  });
  if (!are_siblings) {
    throw InconsistentError({.file = path.string()},
                            "holds checkpoints in several folders: " + listed_paths(found, path))
        .with_hint("give one of them: " + found.back().string());
  }
  sort_by_age(found);
  return found;
}

std::optional<NearestCheckpoint> newest_below(const fs::path& path) {
  std::vector<fs::path> found = siblings_below(path);
  if (found.empty()) return std::nullopt;
  const std::string name = found.back().lexically_relative(path).string();
  std::string note = "reading " + name + ", ";
  if (found.size() == 1) {
    note += "the only checkpoint in " + path.string();
  } else {
    note += "the newest of " + counted(found.size(), "checkpoint") + " in " + path.string();
  }
  return NearestCheckpoint{
      found.back(), "", std::move(note), {std::next(found.rbegin()), found.rend()}};
}

std::optional<NearestCheckpoint> tag_below(const fs::path& path, const std::string& tag) {
  std::error_code failed;
  if (path.filename() == tag && has_shards(path)) return NearestCheckpoint{path, "", ""};
  if (fs::is_directory(path / tag, failed)) {
    if (has_shards(path / tag) || !latest_in(path / tag)) return std::nullopt;
    return NearestCheckpoint{path / tag, "", ""};
  }
  std::vector<fs::path> found;
  for (const fs::path& each : Search().below(path, kLevels)) {
    if (each.filename() == tag) found.push_back(each);
    if (fs::is_directory(each / tag, failed) && has_shards(each / tag)) found.push_back(each / tag);
  }
  if (found.empty()) return std::nullopt;
  if (found.size() > 1) {
    throw InconsistentError({.file = path.string()}, "holds several checkpoints of the tag '" +
                                                         tag + "': " + listed_paths(found, path))
        .with_hint("give one of them: " + found.front().string());
  }
  return NearestCheckpoint{found.front(), "",
                           "reading " + found.front().lexically_relative(path).string()};
}

}  // namespace

std::vector<NamedCheckpoint> all_checkpoints(const fs::path& path) {
  std::error_code failed;
  if (!fs::exists(path, failed)) throw IoError({.file = path.string()}, "cannot open", ENOENT);
  std::vector<fs::path> tags;
  for (const fs::path& folder : folders_in(path)) {
    if (has_shards(folder)) tags.push_back(folder);
  }
  std::vector<NamedCheckpoint> all;
  if (!tags.empty()) {
    sort_by_age(tags);
    for (const fs::path& tag : tags) {
      const std::string name = tag.filename().string();
      all.push_back({path, name, name});
    }
    return all;
  }
  for (const fs::path& folder : siblings_below(path)) {
    all.push_back({folder, "", folder.filename().string()});
  }
  if (all.empty())
    throw InconsistentError({.file = path.string()}, "holds no checkpoints")
        .with_hint("give the folder that holds the tags");
  return all;
}

std::vector<fs::path> other_tags(const fs::path& path, const std::string& tag) {
  const fs::path relative = fs::path(tag).lexically_normal();
  const bool stays = !relative.is_absolute() && *relative.begin() != "..";
  std::vector<fs::path> others;
  const auto look_in = [&](const fs::path& folder) {
    for (const fs::path& each : folders_in(folder)) {
      // What the Trainer calls a checkpoint has the tag's folder in it.
      if (each != path / relative && (has_shards(each) || latest_in(each))) others.push_back(each);
    }
  };
  try {
    if (stays) look_in((path / relative).parent_path());
    if (others.empty()) look_in(path);
  } catch (const IoError&) {  // a hint is no place for it
  }
  if (!others.empty()) sort_by_age(others);
  std::reverse(others.begin(), others.end());
  return others;
}

bool is_latest(const fs::path& file) {
  std::error_code failed;
  const fs::path name = content_path(file).filename();
  return std::find(kLatest.begin(), kLatest.end(), name) != kLatest.end() &&
         !fs::is_directory(file, failed);
}

std::optional<fs::path> latest_in(const fs::path& folder) {
  for (const char* name : kLatest) {
    if (is_stored(folder / name)) return folder / name;
  }
  return std::nullopt;
}

std::optional<NearestCheckpoint> nearest_checkpoint(const fs::path& path, const std::string& tag) {
  std::error_code failed;
  if (!fs::is_directory(path, failed)) {
    const std::string name = content_path(path).filename().string();
    fs::path folder = path.parent_path();
    if (folder.empty()) folder = ".";
    if (parse_shard_name(name) || is_dcp_name(name)) return NearestCheckpoint{folder, tag, ""};
    if (!is_latest(path)) return std::nullopt;
    return NearestCheckpoint{folder, tag.empty() ? tag_named_by(path) : tag, ""};
  }
  if (!tag.empty()) return tag_below(path, tag);
  if (latest_in(path) || has_shards(path)) return std::nullopt;
  return newest_below(path);
}

}  // namespace dsckpt
