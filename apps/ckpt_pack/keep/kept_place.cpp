#include "ckpt_pack/keep/kept_place.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/json.h"
#include "base/random.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "exec/commit.h"
#include "exec/journal.h"
#include "io/content_name.h"
#include "io/far_files.h"
#include "io/text_file.h"
#include "job/neighbours.h"

namespace dsckpt::pack {
namespace fs = std::filesystem;
namespace {

constexpr const char* kState = ".dsckpt-keep";
constexpr const char* kPlaceFile = ".dsckpt-keep/place.json";
constexpr const char* kBegunFile = ".dsckpt-keep/begun";
constexpr const char* kKeeperMarks = ".dsckpt-keep/keeper-";
constexpr uint64_t kMostText = uint64_t{256} << 20;

// Returns the content of a file in `folder`, of any owner, or nullopt if there is no such file.
std::optional<std::string> text_at(const Folder& folder, const fs::path& name) {
  const int fd = folder.open_to_read(name);
  if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) return std::nullopt;
  if (fd < 0) throw IoError({.file = (folder.path() / name).string()}, "cannot open", errno);
  std::string text;
  char block[1 << 16];
  ssize_t got = 0;
  while ((got = ::read(fd, block, sizeof block)) > 0 && text.size() < kMostText) {
    text.append(block, static_cast<size_t>(got));
  }
  const int failed = got < 0 ? errno : 0;
  ::close(fd);
  if (failed != 0) throw IoError({.file = (folder.path() / name).string()}, "cannot read", failed);
  return text;
}

std::string text_member(const nlohmann::json& data, const char* key) {
  const bool has = data.is_object() && data.contains(key) && data[key].is_string();
  return has ? data[key].get<std::string>() : "";
}

// Returns the id in the content of the place file.
std::optional<std::string> id_of(const std::optional<std::string>& text) {
  if (!text) return std::nullopt;
  return text_member(parse_json(*text), "id");
}

std::optional<std::string> id_in(const Folder& folder) {
  return id_of(text_at(folder, kPlaceFile));
}

}  // namespace

KeptPlace::KeptPlace(fs::path path, fs::path run, bool force)
    : path_(fs::absolute(path).lexically_normal()),
      run_(fs::absolute(run).lexically_normal()),
      force_(force),
      far_(far_place(path_)) {}

std::string KeptPlace::shown() const {
  return shown_path(path_);
}

std::string KeptPlace::far_path(const std::string& name) const {
  return far_->path.empty() ? name : far_->path + "/" + name;
}

std::optional<std::string> KeptPlace::read(const std::string& name) const {
  if (!far_) return text_at(*folder_, name);
  if (!far_->store->find_etag(far_path(name))) return std::nullopt;
  return far_->store->read(far_path(name), kMostText);
}

void KeptPlace::write(const std::string& name, const std::string& text) {
  if (far_) {
    far_->store->put(far_path(name), std::as_bytes(std::span(text)), std::nullopt);
    return;
  }
  const fs::path path(name);
  std::vector<fs::path> made;
  const Folder folder = folder_->below(path.parent_path(), &made);
  replace_text_file(folder, path.filename(), text, true);
  if (!made.empty()) folder_->sync();
}

std::vector<KeptPlace::Mark> KeptPlace::marks() const {
  std::vector<Mark> all;
  const Folder folder = Folder::at(run_);
  for (const std::string& name : folder.names()) {
    if (!name.starts_with(kKeepPrefix) || !name.ends_with(".json")) continue;
    const std::optional<std::string> text = text_at(folder, name);
    if (!text) continue;
    const nlohmann::json data = parse_json(*text);
    if (text_member(data, "type") != "keep-run") continue;
    const bool made = data.contains("made") && data["made"] == true;
    const nlohmann::json number = data.value("folder", nlohmann::json());
    all.push_back({text_member(data, "id"), text_member(data, "place"), made,
                   number.is_number_unsigned() ? number.get<uint64_t>() : 0});
  }
  return all;
}

void KeptPlace::save(const Mark& mark) const {
  const nlohmann::json data = {{"schema", 1},       {"type", "keep-run"},
                               {"id", mark.id},     {"place", mark.place},
                               {"made", mark.made}, {"folder", mark.folder}};
  replace_text_file(Folder::at(run_), std::string(kKeepPrefix) + "-" + mark.id + ".json",
                    dump(data) + "\n", true);
}

std::optional<std::string> KeptPlace::id_there() const {
  if (!far_ && !folder_) return std::nullopt;
  return id_of(read(kPlaceFile));
}

void KeptPlace::make_folder() {
  if (far_ || folder_) return;
  const Folder above = Folder::at(path_.parent_path());
  const int failed = above.make_folder(path_.filename());
  if (failed != 0 && failed != EEXIST) {
    throw IoError({.file = shown()}, "cannot make the folder", failed);
  }
  if (failed == 0) above.sync();
  folder_ = Folder::at(path_);
}

// The folder's number identifies it until its file is written, for a process that resumes after a
// kill.
void KeptPlace::make(const std::string& id) {
  save({id, shown(), false, folder_ ? folder_->number() : 0});
  const nlohmann::json data = {{"schema", 1}, {"type", "keep-place"}, {"id", id}};
  write(kPlaceFile, dump(data) + "\n");
  save({id, shown(), true});
}

void KeptPlace::open() {
  const std::vector<Mark> known = marks();
  folder_.reset();
  std::optional<IoError> missing;
  if (!far_) {
    try {
      folder_ = Folder::at(path_);
    } catch (const IoError& error) {
      missing = error;
    }
  }
  const std::optional<std::string> there = id_there();
  const auto of_id = std::find_if(known.begin(), known.end(),
                                  [&](const Mark& mark) { return there && mark.id == *there; });
  const auto of_path = std::find_if(known.begin(), known.end(),
                                    [&](const Mark& mark) { return mark.place == shown(); });
  if (of_id != known.end()) {
    id_ = of_id->id;
    if (!of_id->made || of_id->place != shown()) save({id_, shown(), true});
  } else if (there) {
    if (of_path != known.end() && of_path->made && !force_) {
      throw UsageError(shown() + ": is not the place of this run's earlier copies")
          .with_hint("--force accepts it");
    }
    if (of_path == known.end() && !force_) {
      throw UsageError(shown() + ": has the checkpoints of another run")
          .with_hint("give a folder of its own; if it is this run all the same: --force");
    }
    id_ = *there;
    save({id_, shown(), true});
  } else {
    const bool is_known = of_path != known.end();
    const bool is_begun =
        is_known && !of_path->made && !missing && (far_ || folder_->number() == of_path->folder);
    if (is_known && !is_begun && !force_) {
      if (missing) throw *missing;
      throw IoError({.file = shown()},
                    "does not have this run's file " + std::string(kPlaceFile) +
                        ": its file system may not be mounted",
                    0)
          .with_hint("if the place is lost, --force starts a new one");
    }
    make_folder();
    id_ = is_begun ? of_path->id : std::to_string(random_number());
    make(id_);
    records_.clear();
    has_read_ = false;
  }
  lock();
  read_records();
  begun_.clear();
  std::istringstream lines(read(kBegunFile).value_or(""));
  for (std::string line; std::getline(lines, line);) begun_.insert(line);
}

void KeptPlace::open_to_read() {
  if (!far_) folder_ = Folder::at(path_);
  const std::optional<std::string> there = id_there();
  if (!there) {
    throw UsageError(shown() + ": ckpt-pack keep has not copied checkpoints to this place");
  }
  id_ = *there;
  read_records();
}

void KeptPlace::adopt() {
  save({id_, shown(), true});
}

void KeptPlace::lock_far() {
  if (mark_ && mark_->is_there()) return;
  mark_.reset();
  mark_.emplace(*far_, far_path(kKeeperMarks), shown());
  records_.clear();
  has_read_ = false;
}

void KeptPlace::lock() {
  if (far_) return lock_far();
  const std::optional<struct stat> about = folder_->look(kState);
  if (!about) throw IoError({.file = shown()}, "is gone again", ENOENT);
  const std::pair<uint64_t, uint64_t> here(about->st_dev, about->st_ino);
  if (lock_ && locked_ == here) return;
  lock_.reset();
  try {
    lock_.emplace(folder_->below(kState));
  } catch (const UsageError&) {
    throw UsageError(shown() + ": another process keeps checkpoints there")
        .with_hint("one is enough; it ends with its job, or with kill");
  }
  locked_ = here;
  records_.clear();
  has_read_ = false;
}

bool KeptPlace::is_same() const {
  if (far_) return true;
  try {
    return id_in(Folder::at(path_)) == id_;
  } catch (const Error&) {
    return false;
  }
}

void KeptPlace::check_folder(const Folder& folder) const {
  if (id_in(folder) != id_) throw IoError({.file = shown()}, "is not the same place any more", 0);
}

void KeptPlace::read_records() {
  if (far_) {
    if (std::exchange(has_read_, true)) return;
    for (const FarObject& object : far_->store->list(far_path(""))) {
      const fs::path path = fs::path(object.path).lexically_relative(far_path(""));
      if (path.filename() != kRecordName || std::distance(path.begin(), path.end()) != 2) continue;
      add_record(path.parent_path().string());
    }
    return;
  }
  for (const std::string& name : folder_->names()) {
    if (name.starts_with(".") || records_.contains(name)) continue;
    if (folder_->has(fs::path(name) / kRecordName)) add_record(name);
  }
}

void KeptPlace::add_record(const std::string& folder) {
  const std::string name = folder + "/" + kRecordName;
  const std::optional<std::string> text = read(name);
  if (!text) throw IoError({.file = shown_path(path_ / name)}, "is not there", ENOENT);
  in_context({.file = shown_path(path_ / name)},
             [&] { records_.insert_or_assign(folder, parse_record(*text)); });
}

const Record* KeptPlace::find(const std::string& name, const std::vector<RunFile>& files) const {
  for (const auto& [folder, record] : records_) {
    if (record.name == name && record.files == files) return &record;
  }
  return nullptr;
}

std::string KeptPlace::free_name(const std::string& name) const {
  for (int number = 1;; ++number) {
    const std::string folder = number == 1 ? name : name + "." + std::to_string(number);
    if (records_.contains(folder)) continue;
    if (begun_.contains(folder)) return folder;
    const bool is_there =
        far_ ? !far_->store->list(far_path(folder) + "/").empty() : folder_->has(folder);
    if (!is_there) return folder;
  }
}

// Returns the content of a folder: the bytes of each file, by path.
std::map<std::string, uint64_t> KeptPlace::stored_in(const std::string& folder) const {
  std::map<std::string, uint64_t> stored;
  if (far_) {
    const std::string front = far_path(folder) + "/";
    for (const FarObject& object : far_->store->list(front)) {
      stored.emplace(object.path.substr(front.size()), object.size);
    }
    return stored;
  }
  const auto add = [&](const auto& self, const Folder& at, const fs::path& name) -> void {
    for (const std::string& each : at.names()) {
      const std::optional<struct stat> about = at.look(each);
      if (about && S_ISDIR(about->st_mode)) self(self, at.below(each), name / each);
      if (about && S_ISREG(about->st_mode)) {
        stored.emplace((name / each).generic_string(), static_cast<uint64_t>(about->st_size));
      }
    }
    at.sync();
  };
  add(add, folder_->below(folder), "");
  folder_->sync();
  return stored;
}

void KeptPlace::check_is_safe(const std::string& folder) const {
  const std::string name = shown_path(path_ / folder);
  if (!far_) check_folder(*folder_);
  const std::map<std::string, uint64_t> stored = stored_in(folder);
  const Record& record = records_.at(folder);
  if (!stored.contains(kRecordName)) throw IoError({.file = name}, "has no record any more", 0);
  for (const JobFile& file : record.outputs) {
    const auto plain = stored.find(file.path);
    if (plain != stored.end() && plain->second == file.bytes) continue;
    if (plain == stored.end() && stored.contains(file.path + ".dspack")) continue;
    throw IoError({.file = name + "/" + file.path}, "is not there as it was written", 0);
  }
}

void KeptPlace::begin(const std::string& folder) {
  if (begun_.insert(folder).second) write_begun();
}

void KeptPlace::end(const std::string& folder) {
  if (begun_.erase(folder) != 0) write_begun();
}

void KeptPlace::write_begun() {
  std::string text;
  for (const std::string& folder : begun_) text += folder + "\n";
  write(kBegunFile, text);
}

std::string KeptPlace::abandon(const std::string& folder) {
  if (far_) return "";
  try {
    // The open folder is used, since another one may have its path by now.
    const std::string name = resumable_folder(path_ / folder, true).filename();
    const std::optional<Folder> found = folder_->own(name);
    if (!found) return "";
    const SignedBy owner = owner_of(*found);
    // A new, unsigned folder belongs to a killed process, since this process holds the lock.
    if (owner.state == OwnerState::alive && !owner.who.empty()) {
      return found->path().string() + " is being written by " + owner.who;
    }
    const int failed = remove_staging_folder(*folder_, *found);
    if (failed == 0) return "";
    throw IoError({.file = found->path().string()}, "cannot be removed", failed);
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace dsckpt::pack
