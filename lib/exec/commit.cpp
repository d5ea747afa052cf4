#include "exec/commit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "dsckpt/error.h"
#include "exec/journal.h"
#include "exec/staged_files.h"
#include "exec/staging_owner.h"
#include "io/content_name.h"

namespace dsckpt {
namespace fs = std::filesystem;

bool Staging::is_packed(OutputId out) const {
  return is_stored_packed(plan.outputs()[out], options.packed);
}

namespace {

constexpr const char* kCommitNote = "user.dsckpt.committed";

UsageError exists_already(const fs::path& path) {
  return UsageError(path.string() + ": exists already").with_hint("--force replaces it");
}

IoError not_moved(const fs::path& to, int reason) {
  return IoError({.file = to.string()}, "cannot move into place", reason);
}

// A file that has come to be there since check() looked is not replaced unasked.
void move_into_place(const Folder& staging, const fs::path& from, const Folder& folder,
                     const std::string& name, bool force) {
  const fs::path to = folder.path() / name;
  if (!force) {
    int failed = staging.rename(from, folder, name, RENAME_NOREPLACE);
    if (failed == 0) return;
    if (failed == EEXIST) throw exists_already(to);
    // File systems without RENAME_NOREPLACE say EINVAL; link refuses existing files as well.
    if (failed == EINVAL || failed == ENOSYS) {
      failed = staging.link(from, folder, name);
      // It has one name again: only so does a run that goes on take it.
      if (failed == 0) failed = staging.remove(from);
      if (failed == 0) return;
      if (failed == EEXIST) throw exists_already(to);
      // Without links either, looking again is the best there is.
      if (folder.has(name)) throw exists_already(to);
    }
  }
  if (const int failed = staging.rename(from, folder, name)) throw not_moved(to, failed);
}

bool is_mount_point(const fs::path& folder) {
  struct stat own {};
  struct stat above {};
  return ::stat(folder.c_str(), &own) == 0 && ::stat((folder / "..").c_str(), &above) == 0 &&
         own.st_dev != above.st_dev;
}

// One rename or exchange of a folder that was written beside the target.
class WholeFolder final : public Commit {
 public:
  explicit WholeFolder(Staging& staging)
      : Commit(staging), target_(without_slash(staging.target)) {}

  void check() override {
    struct stat found {};
    if (::stat(staging_.target.c_str(), &found) == 0) {
      replaced_ = {found.st_dev, found.st_ino};
    }
    if (!replaced_ || is_published()) return;
    if (!staging_.options.force) throw exists_already(staging_.target);
    if (is_mount_point(staging_.target)) {
      throw UsageError(staging_.target.string() +
                       ": is a mount point and cannot be replaced; empty it");
    }
  }

  fs::path place() const override { return target_.parent_path(); }

  void publish() override {
    if (is_published()) {
      state_ = staging().has(staging_.files_in) ? State::exchanged
               : staging().has(Staging::kOld)   ? State::moved
                                                : State::moved_in;
      return;
    }
    if (staging_.options.durable && !staging_.all_at_once) sync_staged();
    const bool replaces =
        staging_.options.whole_folder && staging_.options.force && place_now().has(name_);
    if (replaces) {
      replace();
    } else {
      move_in();
    }
  }

  std::vector<std::string> take_back() override {
    if (state_ == State::before) return {};
    if (state_ == State::gone) return {old_one_is_kept("gone")};
    if (state_ == State::exchanged) {
      if (exchange() == 0) return {};
      return {target_.string() + " is the new folder; the old one is " +
              (staging().path() / staging_.files_in).string()};
    }
    if (place_now().rename(name_, staging(), staging_.files_in) != 0) {
      if (state_ == State::moved) return {old_one_is_kept("the new folder")};
      return {target_.string() + " is the new folder, where none was"};
    }
    if (state_ == State::moved && staging().rename(Staging::kOld, place_now(), name_) != 0) {
      return {old_one_is_kept("gone")};
    }
    return {};
  }

  void sync_published() override {
    if (!staging_.options.durable) return;
    for (const fs::path& made : staging_.made_folders) Folder::at(made.parent_path()).sync();
    place_now().sync();
  }

 private:
  const Folder& staging() const { return *staging_.folder; }
  const Folder& place_now() const { return *staging_.place; }

  // By the run that this one resumes.
  bool is_published() const {
    if (!staging_.written_inode) return false;
    const std::optional<struct stat> found = place_now().look(name_);
    return found && found->st_ino == *staging_.written_inode;
  }

  void sync_staged() const {
    std::set<fs::path> folders{staging_.files_in};
    for (OutputId out = 0; out < staging_.plan.outputs().size(); ++out) {
      fs::path folder = staging_.staged(out).parent_path();
      while (folders.insert(folder).second) folder = folder.parent_path();
    }
    for (const fs::path& folder : folders) staging().below(folder).sync();
  }

  // A rename takes the place of an empty folder, and of nothing else.
  void move_in() {
    const int failed = staging().rename(staging_.files_in, place_now(), name_);
    if (failed == 0) {
      state_ = State::moved_in;
      return;
    }
    if (failed == ENOTEMPTY || failed == EEXIST || failed == ENOTDIR) throw exists_already(target_);
    throw not_moved(target_, failed);
  }

  std::string old_one_is_kept(const std::string& now) const {
    return target_.string() + " is " + now + "; the old one is " + staging_.old_path().string();
  }

  int exchange() const {
    return staging().rename(staging_.files_in, place_now(), name_, RENAME_EXCHANGE);
  }

  // A user who may rename things beside the target may have put another folder there. It is not
  // removed unless it is such an output as well.
  bool is_the_one(const std::string& name) const {
    const std::optional<struct stat> found = staging().look(name);
    if (!found) return false;
    if (replaced_ == std::pair(found->st_dev, found->st_ino)) return true;
    return S_ISDIR(found->st_mode) && may_replace(staging().below(name), {});
  }
  bool may_replace(const Folder& folder, const fs::path& path) const {
    if (!staging_.options.may_replace) return false;
    const std::vector<std::string> names = folder.names();
    return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
      const std::optional<struct stat> found = folder.look(name);
      if (found && S_ISDIR(found->st_mode)) return may_replace(folder.below(name), path / name);
      return staging_.options.may_replace(content_path(path / name));
    });
  }
  UsageError is_another() const {
    return UsageError(target_.string() + ": is not the folder that was there when this run began");
  }

  // The old folder is then in the staging folder, and removed with it.
  void replace() {
    if (exchange() == 0) {
      state_ = State::exchanged;
      if (!is_the_one(staging_.files_in)) throw is_another();
      return;
    }
    // Without an exchange there is a moment in which neither is there.
    if (const int failed = place_now().rename(name_, staging(), Staging::kOld)) {
      throw IoError({.file = target_.string()}, "cannot replace", failed);
    }
    const int reason = is_the_one(Staging::kOld)
                           ? staging().rename(staging_.files_in, place_now(), name_)
                           : ESTALE;
    if (reason == 0) {
      state_ = State::moved;
      return;
    }
    if (staging().rename(Staging::kOld, place_now(), name_) != 0) state_ = State::gone;
    if (reason == ESTALE) throw is_another();
    throw not_moved(target_, reason);
  }

  const fs::path target_;
  const std::string name_ = target_.filename().string();
  std::optional<std::pair<dev_t, ino_t>> replaced_ = {};  // what was there
  enum class State : uint8_t {
    before,
    moved_in,   // nothing was there
    exchanged,  // the old folder has the staged one's name
    moved,      // the old folder is old()
    gone,       // so it is, and the new one is still staged
  } state_ = State::before;
};

// Renames into a folder that is there, in the order of the plan. The last file is the index that
// points at the others.
class FileByFile final : public Commit {
 public:
  explicit FileByFile(Staging& staging) : Commit(staging) {}

  void check() override {
    for (OutputId out = 0; out < count(); ++out) {
      check_parents(staging_.plan.outputs()[out].path);
      if (is_published(out)) continue;
      for (const fs::path& form : staging_.forms(out)) check_path(form);
    }
  }

  fs::path place() const override { return staging_.target; }

  void publish() override {
    if (staging_.written_inode && staging().has(Staging::kOld)) {
      kept_before_ = staging().below(Staging::kOld).names().size();
    }
    changed_.insert(fs::path());
    if (count() > 0 && is_published(count() - 1)) return;
    if (staging_.options.force && count() > 1) {
      for (const fs::path& form : forms(count() - 1)) set_aside(form, true);
    }
    for (OutputId out = 0; out < count(); ++out) {
      if (!is_published(out)) publish_one(out);
    }
  }

  std::vector<std::string> take_back() override {
    std::vector<std::string> problems;
    std::set<fs::path> had_old;
    for (const Old& old : old_) had_old.insert(old.path);
    for (; !renamed_.empty(); renamed_.pop_back()) {
      const OutputId out = renamed_.back();
      const fs::path path = form(out);
      if (staging_.is_kept()) {
        // For the run that goes on.
        if (target().rename(path, staging(), staging_.staged(out)) == 0) continue;
      } else {
        const int failed = had_old.contains(path) ? 0 : target().remove(path);
        if (failed == 0 || failed == ENOENT) continue;
      }
      problems.push_back(shown(path) + " is the new one");
    }
    for (auto old = old_.rbegin(); old != old_.rend(); ++old) {
      if (staging().rename(old->kept, target(), old->path) == 0) continue;
      problems.push_back(shown(old->path) +
                         (target().has(old->path) ? " is the new one" : " is gone") +
                         "; the old one is " + (staging().path() / old->kept).string());
    }
    old_.clear();
    if (kept_before_ > 0) {
      problems.push_back("files that the previous run replaced are in " +
                         staging_.old_path().string());
    }
    return problems;
  }

  void sync_published() override {
    if (staging_.options.durable) sync_changed();
  }

 private:
  const Folder& staging() const { return *staging_.folder; }
  const Folder& target() const { return *staging_.place; }
  std::string shown(const fs::path& path) const { return (staging_.target / path).string(); }

  // Paths in the target.
  std::vector<fs::path> forms(OutputId out) const { return staging_.forms(out); }
  fs::path form(OutputId out) const {
    return stored_name(staging_.plan.outputs()[out], staging_.options.packed);
  }

  // By the run that this one resumes.
  bool is_published(OutputId out) const {
    return staging_.written_inode && !staging().has(staging_.staged(out)) &&
           target().has(form(out));
  }

  OutputId count() const { return static_cast<OutputId>(staging_.plan.outputs().size()); }

  void check_parents(const fs::path& path) const {
    std::error_code ignored;
    for (fs::path parent = path.parent_path(); !parent.empty(); parent = parent.parent_path()) {
      const fs::path folder = staging_.target / parent;
      const fs::file_status status = fs::symlink_status(folder, ignored);
      if (fs::is_symlink(status)) {
        throw UsageError(folder.string() +
                         ": is a link; an output is not written through links in it");
      }
      if (fs::exists(status) && !fs::is_directory(status)) {
        throw UsageError(folder.string() + ": is not a folder");
      }
    }
  }

  void check_path(const fs::path& form) const {
    std::error_code ignored;
    const fs::path path = staging_.target / form;
    const fs::file_status existing = fs::symlink_status(path, ignored);
    if (!fs::exists(existing)) return;
    if (fs::is_directory(existing)) {
      throw UsageError(path.string() + ": a folder has the name of an output file");
    }
    if (!staging_.options.force) throw exists_already(path);
  }

  // The folder of a path in the target; many in a row have the same.
  const Folder& folder_of(const fs::path& path, std::vector<fs::path>* made = nullptr) {
    const fs::path parent = path.parent_path();
    if (!folder_ || folder_->first != parent) {
      folder_.emplace(parent, target().below(parent, made));
    }
    return folder_->second;
  }

  void publish_one(OutputId out) {
    const fs::path path = form(out);
    const Folder folder = folder_of(path, &staging_.made_folders);
    // After a crash the last file may be there only if all the others are.
    if (staging_.options.durable && out + 1 == count()) sync_changed();
    // The move takes care of its own name.
    for (const fs::path& other : forms(out)) {
      if (other != path) check_path(other);
    }
    if (staging_.options.force) set_aside(path, false);
    move_into_place(staging(), staging_.staged(out), folder, path.filename().string(),
                    staging_.options.force);
    renamed_.push_back(out);
    changed_.insert(path.parent_path());
    if (!staging_.options.force) return;
    for (const fs::path& other : forms(out)) {
      if (other != path) set_aside(other, true);
    }
  }

  // Keeps the file at `path`, if there is one, until the commit is over. It also stays there, so
  // the new one takes its place at once. It does not if it is to be `removed`, or if the file
  // system has no links.
  void set_aside(const fs::path& path, bool removed) {
    if (!target().has(path.parent_path().empty() ? "." : path.parent_path())) return;
    const Folder folder = folder_of(path);
    const fs::path name = path.filename();
    const std::optional<struct stat> found = folder.look(name);
    if (!found) {
      if (errno == ENOENT) return;
      throw IoError({.file = shown(path)}, "cannot replace", errno);
    }
    // A folder has come to be there since check(): the move will fail.
    if (S_ISDIR(found->st_mode)) return;
    if (kept_before_ + old_.size() == 0) staging().make_folder(Staging::kOld);
    const fs::path kept = fs::path(Staging::kOld) / std::to_string(kept_before_ + old_.size());
    const bool linked = folder.link(name, staging(), kept) == 0;
    if (linked) old_.push_back({path, kept});
    if (linked && !removed) return;
    if (const int failed = linked ? folder.remove(name) : folder.rename(name, staging(), kept)) {
      throw IoError({.file = shown(path)}, "cannot replace", failed);
    }
    if (!linked) old_.push_back({path, kept});
  }

  void sync_changed() {
    if (staging_.all_at_once) return staging_.all_at_once->sync();
    for (const fs::path& made : staging_.made_folders) Folder::at(made.parent_path()).sync();
    for (const fs::path& folder : changed_) target().below(folder).sync();
    changed_.clear();
  }

  // A file that was there, in the target, and where it is kept, in the staging folder.
  struct Old {
    fs::path path;
    fs::path kept;
  };

  std::optional<std::pair<fs::path, Folder>> folder_;  // folder_of()'s last
  std::set<fs::path> changed_;                         // folders in the target, since the last sync
  std::vector<Old> old_;                               // in the order in which they made room
  size_t kept_before_ = 0;         // old files, by the run that this one resumes
  std::vector<OutputId> renamed_;  // outputs that have their final names
};

// Returns whether it holds only the first files of a run: a signature, and a job without its name
// yet. A loss of power may leave the names without their contents.
bool has_only_begun(const Folder& folder) {
  const std::vector<std::string> names = folder.names();
  return std::all_of(names.begin(), names.end(), [](const std::string& name) {
    return name == "owner" || name.starts_with("job.");
  });
}

}  // namespace

fs::path Staging::staged(OutputId out) const {
  return fs::path(files_in) / stored_name(plan.outputs()[out], options.packed);
}
fs::path Staging::final_path(OutputId out) const {
  return target / stored_name(plan.outputs()[out], options.packed);
}
std::vector<fs::path> Staging::forms(OutputId out) const {
  std::vector<fs::path> forms(3, plan.outputs()[out].path);
  forms[1] += kPackedSuffix;
  forms[2] += kZstdSuffix;
  return forms;
}

std::unique_ptr<Commit> choose_commit(Staging& staging) {
  const fs::path& target = staging.target;
  std::error_code ignored;
  const fs::file_status status = fs::status(target, ignored);
  if (fs::exists(status) && !fs::is_directory(status)) {
    throw UsageError(target.string() + ": is not a folder")
        .with_hint("the output must be a new folder; give another name");
  }
  if (!fs::exists(status) && fs::exists(fs::symlink_status(target, ignored))) {
    throw UsageError(target.string() + ": is a link to nothing");
  }
  // An empty folder is filled from inside: it may be a file system of its own.
  const bool full = fs::exists(status) && !fs::is_empty(target, ignored);
  if (!fs::exists(status) || (staging.options.whole_folder && full)) {
    return std::make_unique<WholeFolder>(staging);
  }
  return std::make_unique<FileByFile>(staging);
}

void check_free_to_take(const Folder& folder) {
  const std::string path = folder.path().string();
  const SignedBy owner = owner_of(folder);
  if (owner.state == OwnerState::alive && !owner.who.empty()) {
    throw UsageError(path + ": is being written by " + owner.who);
  }
  if (owner.who.empty() && !has_job(folder) && !has_only_begun(folder)) {
    throw UsageError(path + ": has the name of a staging folder, and no run has signed it")
        .with_hint("look at it, and move it away");
  }
}

void check_same_job(const Folder& folder, const JobIdentity& job) {
  const std::string difference = difference_from_saved(folder, job);
  if (difference.empty()) return;
  throw UsageError(folder.path().string() + ": this command cannot resume it: " + difference)
      .with_hint("the command that started it resumes it; else remove that folder");
}

bool can_go_on(const fs::path& target) {
  for (const bool whole_folder : {true, false}) {
    const std::optional<Resumable> found = find_resumable(target, whole_folder);
    if (found && has_job(found->folder)) return true;
  }
  return false;
}

std::unique_ptr<Commit> same_commit(Staging& staging, bool whole_folder) {
  if (whole_folder) return std::make_unique<WholeFolder>(staging);
  return std::make_unique<FileByFile>(staging);
}

fs::path resumable_folder(const fs::path& target, bool whole_folder) {
  const std::string name = std::string(kStagingPrefix) + "resume";
  if (!whole_folder) return target / name;
  const fs::path path = without_slash(target);
  return path.parent_path() / (name + "-" + path.filename().string());
}

Folder make_resumable_folder(const Folder& place, const std::string& name) {
  Folder folder = place.make_own(name);
  if (folder.owner() == ::geteuid()) return folder;
  place.remove_folder(name);
  throw UsageError(folder.path().string() + ": the file system gives what user " +
                   std::to_string(::geteuid()) + " makes to user " +
                   std::to_string(folder.owner()) + ", so its owner would be unknown later")
      .with_hint("run as a user that the file system knows, or without --resume and --emit-plan");
}

std::optional<Resumable> find_resumable(const fs::path& target, bool whole_folder) {
  const fs::path path = resumable_folder(target, whole_folder);
  std::error_code failed;
  if (!fs::is_directory(path.parent_path(), failed)) return std::nullopt;
  const Folder place = Folder::at(path.parent_path());
  const std::optional<Folder> folder = place.own(path.filename().string());
  if (!folder) return std::nullopt;
  return Resumable{place, *folder};
}

int note_commit(const Folder& output) {
  // The call takes no descriptor with O_PATH.
  const std::string path = "/proc/self/fd/" + std::to_string(output.descriptor());
  return ::setxattr(path.c_str(), kCommitNote, "1", 1, 0) == 0 ? 0 : errno;
}

std::optional<bool> is_noted_commit(const fs::path& output) {
  if (::getxattr(output.c_str(), kCommitNote, nullptr, 0) >= 0) return true;
  return errno == ENOTSUP ? std::nullopt : std::optional(false);
}

fs::path without_slash(const fs::path& path) {
  const fs::path absolute = fs::absolute(path).lexically_normal();
  return absolute.has_filename() ? absolute : absolute.parent_path();
}

}  // namespace dsckpt
