#include "exec/commit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <iterator>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "dsckpt/error.h"
#include "exec/journal.h"
#include "exec/staged_files.h"
#include "io/content_name.h"

namespace dsckpt {
namespace fs = std::filesystem;

bool Staging::is_packed(OutputId out) const {
  return is_stored_packed(plan.outputs()[out], options.packed);
}

namespace {

UsageError exists_already(const fs::path& path) {
  return UsageError(path.string() + ": exists already").with_hint("--force replaces it");
}

IoError not_moved(const fs::path& to, int reason) {
  return IoError({.file = to.string()}, "cannot move into place", reason);
}

// A file that has come to be there since check() looked is not replaced unasked.
void move_into_place(const fs::path& from, const fs::path& to, bool force) {
  if (!force) {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return;
    if (errno == EEXIST) throw exists_already(to);
    // File systems without RENAME_NOREPLACE say EINVAL; link refuses existing files as well.
    if (errno == EINVAL || errno == ENOSYS) {
      if (::link(from.c_str(), to.c_str()) == 0) return;
      if (errno == EEXIST) throw exists_already(to);
      // Without links either, looking again is the best there is.
      if (fs::exists(fs::symlink_status(to))) throw exists_already(to);
    }
  }
  if (::rename(from.c_str(), to.c_str()) != 0) throw not_moved(to, errno);
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

  void check() const override {
    std::error_code ignored;
    if (!fs::exists(staging_.target, ignored) || is_published()) return;
    if (!staging_.options.force) throw exists_already(staging_.target);
    if (is_mount_point(staging_.target)) {
      throw UsageError(staging_.target.string() +
                       ": is a mount point and cannot be replaced; empty it");
    }
  }

  fs::path place() const override { return target_.parent_path(); }

  void publish() override {
    std::error_code ignored;
    if (is_published()) {
      state_ = fs::exists(staging_.files_in, ignored) ? State::exchanged
               : fs::exists(staging_.old(), ignored)  ? State::moved
                                                      : State::moved_in;
      return;
    }
    if (staging_.options.durable && !staging_.all_at_once) sync_staged();
    const bool replaces =
        staging_.options.whole_folder && staging_.options.force && fs::exists(target_, ignored);
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
      if (exchange()) return {};
      return {target_.string() + " is the new folder; the old one is " +
              staging_.files_in.string()};
    }
    if (::rename(target_.c_str(), staging_.files_in.c_str()) != 0) {
      if (state_ == State::moved) return {old_one_is_kept("the new folder")};
      return {target_.string() + " is the new folder, where none was"};
    }
    if (state_ == State::moved && ::rename(staging_.old().c_str(), target_.c_str()) != 0) {
      return {old_one_is_kept("gone")};
    }
    return {};
  }

  void sync_published() override {
    if (!staging_.options.durable) return;
    for (const fs::path& made : staging_.made_folders) sync_directory(made.parent_path());
    sync_directory(target_.parent_path());
  }

 private:
  // By the run that this one goes on with.
  bool is_published() const {
    struct stat found {};
    return staging_.written_inode && ::stat(target_.c_str(), &found) == 0 &&
           found.st_ino == *staging_.written_inode;
  }

  void sync_staged() const {
    std::set<fs::path> folders{staging_.files_in};
    for (OutputId out = 0; out < staging_.plan.outputs().size(); ++out) {
      fs::path folder = staging_.staged(out).parent_path();
      while (folders.insert(folder).second) folder = folder.parent_path();
    }
    for (const fs::path& folder : folders) sync_directory(folder);
  }

  // A rename takes the place of an empty folder, and of nothing else.
  void move_in() {
    if (::rename(staging_.files_in.c_str(), target_.c_str()) == 0) {
      state_ = State::moved_in;
      return;
    }
    if (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR) throw exists_already(target_);
    throw not_moved(target_, errno);
  }

  std::string old_one_is_kept(const std::string& now) const {
    return target_.string() + " is " + now + "; the old one is " + staging_.old().string();
  }

  bool exchange() const {
    return ::renameat2(AT_FDCWD, staging_.files_in.c_str(), AT_FDCWD, target_.c_str(),
                       RENAME_EXCHANGE) == 0;
  }

  // The old folder is then in the staging folder, and removed with it.
  void replace() {
    if (exchange()) {
      state_ = State::exchanged;
      return;
    }
    // Without an exchange there is a moment in which neither is there.
    if (::rename(target_.c_str(), staging_.old().c_str()) != 0) {
      throw IoError({.file = target_.string()}, "cannot replace", errno);
    }
    if (::rename(staging_.files_in.c_str(), target_.c_str()) == 0) {
      state_ = State::moved;
      return;
    }
    const int reason = errno;
    if (::rename(staging_.old().c_str(), target_.c_str()) != 0) state_ = State::gone;
    throw not_moved(target_, reason);
  }

  const fs::path target_;
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

  void check() const override {
    for (OutputId out = 0; out < count(); ++out) {
      check_parents(staging_.plan.outputs()[out].path);
      if (is_published(out)) continue;
      for (const fs::path& form : staging_.forms(out)) check_path(form);
    }
  }

  fs::path place() const override { return staging_.target; }

  void publish() override {
    if (staging_.written_inode) {
      std::error_code failed;
      const fs::directory_iterator kept(staging_.old(), failed);
      if (!failed) kept_before_ = static_cast<size_t>(std::distance(kept, {}));
    }
    changed_.insert(staging_.target);
    if (count() > 0 && is_published(count() - 1)) return;
    if (staging_.options.force && count() > 1) {
      for (const fs::path& form : staging_.forms(count() - 1)) set_aside(form, true);
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
      const fs::path path = staging_.final_path(renamed_.back());
      if (staging_.is_kept()) {
        // For the run that goes on.
        if (::rename(path.c_str(), staging_.staged(renamed_.back()).c_str()) == 0) continue;
      } else if (had_old.contains(path) || ::unlink(path.c_str()) == 0 || errno == ENOENT) {
        continue;
      }
      problems.push_back(path.string() + " is the new one");
    }
    for (auto old = old_.rbegin(); old != old_.rend(); ++old) {
      if (::rename(old->kept.c_str(), old->path.c_str()) == 0) continue;
      std::error_code ignored;
      const bool there = fs::exists(fs::symlink_status(old->path, ignored));
      problems.push_back(old->path.string() + (there ? " is the new one" : " is gone") +
                         "; the old one is " + old->kept.string());
    }
    old_.clear();
    if (kept_before_ > 0) {
      problems.push_back("what the run before had replaced is in " + staging_.old().string());
    }
    return problems;
  }

  void sync_published() override {
    if (staging_.options.durable) sync_changed();
  }

 private:
  // By the run that this one goes on with.
  bool is_published(OutputId out) const {
    std::error_code ignored;
    return staging_.written_inode &&
           !fs::exists(fs::symlink_status(staging_.staged(out), ignored)) &&
           fs::exists(fs::symlink_status(staging_.final_path(out), ignored));
  }

  OutputId count() const { return static_cast<OutputId>(staging_.plan.outputs().size()); }

  void check_parents(const fs::path& path) const {
    std::error_code ignored;
    for (fs::path parent = path.parent_path(); !parent.empty(); parent = parent.parent_path()) {
      const fs::path folder = staging_.target / parent;
      const fs::file_status status = fs::status(folder, ignored);
      if (fs::exists(status) && !fs::is_directory(status)) {
        throw UsageError(folder.string() + ": is not a folder");
      }
    }
  }

  void check_path(const fs::path& path) const {
    std::error_code ignored;
    const fs::file_status existing = fs::symlink_status(path, ignored);
    if (!fs::exists(existing)) return;
    if (fs::is_directory(existing)) {
      throw UsageError(path.string() + ": a folder has the name of an output file");
    }
    if (!staging_.options.force) throw exists_already(path);
  }

  void publish_one(OutputId out) {
    const fs::path path = staging_.final_path(out);
    make_folders(path.parent_path(), staging_.made_folders);
    // After a crash the last file may be there only if all the others are.
    if (staging_.options.durable && out + 1 == count()) sync_changed();
    // Of its own name the move takes care.
    for (const fs::path& form : staging_.forms(out)) {
      if (form != path) check_path(form);
    }
    if (staging_.options.force) set_aside(path, false);
    move_into_place(staging_.staged(out), path, staging_.options.force);
    renamed_.push_back(out);
    changed_.insert(path.parent_path());
    if (!staging_.options.force) return;
    for (const fs::path& form : staging_.forms(out)) {
      if (form != path) set_aside(form, true);
    }
  }

  // Keeps what is at `path`, if anything, until the commit is over. It stays there as well, so that
  // the new one takes its place at once, unless it is to be `removed` or the file system has no
  // links.
  void set_aside(const fs::path& path, bool removed) {
    struct stat found {};
    if (::lstat(path.c_str(), &found) != 0) {
      if (errno == ENOENT) return;
      throw IoError({.file = path.string()}, "cannot replace", errno);
    }
    // A folder has come to be there since check(): the move will fail.
    if (S_ISDIR(found.st_mode)) return;
    std::error_code ignored;
    if (kept_before_ + old_.size() == 0) fs::create_directory(staging_.old(), ignored);
    const fs::path kept = staging_.old() / std::to_string(kept_before_ + old_.size());
    const bool linked = ::link(path.c_str(), kept.c_str()) == 0;
    if (linked) old_.push_back({path, kept});
    if (linked && !removed) return;
    if ((linked ? ::unlink(path.c_str()) : ::rename(path.c_str(), kept.c_str())) != 0) {
      throw IoError({.file = path.string()}, "cannot replace", errno);
    }
    if (!linked) old_.push_back({path, kept});
  }

  void sync_changed() {
    if (staging_.all_at_once) return staging_.all_at_once->sync();
    for (const fs::path& made : staging_.made_folders) changed_.insert(made.parent_path());
    for (const fs::path& folder : changed_) sync_directory(folder);
    changed_.clear();
  }

  // A file that was there, and where it is kept.
  struct Old {
    fs::path path;
    fs::path kept;
  };

  std::set<fs::path> changed_;     // folders, since the last sync
  std::vector<Old> old_;           // in the order in which they made room
  size_t kept_before_ = 0;         // old files, by the run that this one goes on with
  std::vector<OutputId> renamed_;  // outputs that have their final names
};

}  // namespace

fs::path Staging::staged(OutputId out) const {
  return files_in / stored_name(plan.outputs()[out], options.packed);
}
fs::path Staging::final_path(OutputId out) const {
  return target / stored_name(plan.outputs()[out], options.packed);
}
std::vector<fs::path> Staging::forms(OutputId out) const {
  std::vector<fs::path> forms(3, target / plan.outputs()[out].path);
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
        .with_hint("the output is a folder that is made; give another name");
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

bool can_go_on(const fs::path& target) {
  return has_job(resumable_folder(target, true)) || has_job(resumable_folder(target, false));
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

void make_folders(const fs::path& path, std::vector<fs::path>& made) {
  std::vector<fs::path> missing;
  std::error_code failed;
  for (fs::path p = fs::absolute(path).lexically_normal(); !fs::exists(p, failed);
       p = p.parent_path()) {
    if (p.has_filename()) missing.push_back(p);
    if (!p.has_relative_path()) break;
  }
  for (auto p = missing.rbegin(); p != missing.rend(); ++p) {
    if (fs::create_directory(*p, failed)) made.push_back(*p);
    if (failed) throw IoError({.file = p->string()}, "cannot make the folder", failed.value());
  }
}

fs::path without_slash(const fs::path& path) {
  const fs::path absolute = fs::absolute(path).lexically_normal();
  return absolute.has_filename() ? absolute : absolute.parent_path();
}

}  // namespace dsckpt
