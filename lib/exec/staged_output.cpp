#include "exec/staged_output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <set>
#include <string>
#include <system_error>

#include "codec/packed_index.h"
#include "dsckpt/error.h"
#include "exec/frame_cuts.h"
#include "io/content_name.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

// Files up to this size are one write: it reserves its blocks itself, and there are too many of
// them for the disk to be asked about each.
constexpr uint64_t kSmallFile = 256 << 10;
// An fsync is a commit of the file system's journal; more files than this share one.
constexpr size_t kSyncedOneByOne = 16;

// Nearest existing ancestor, for asking about its file system.
fs::path existing_part(fs::path path) {
  path = fs::absolute(path).lexically_normal();
  std::error_code ignored;
  while (!fs::exists(path, ignored) && path.has_relative_path()) path = path.parent_path();
  return path;
}

// Makes `path` and its missing parents; those it made are appended to `made`.
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

UsageError exists_already(const fs::path& path) {
  return UsageError(path.string() + ": exists already").with_hint("--force replaces it");
}

// A file that has come to be there since the constructor looked is not replaced unasked.
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
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw IoError({.file = to.string()}, "cannot move into place", errno);
  }
}

// All names under which a file may hold the content called `path`.
std::array<fs::path, 3> forms_of(const fs::path& path) {
  std::array<fs::path, 3> forms{path, path, path};
  forms[1] += kPackedSuffix;
  forms[2] += kZstdSuffix;
  return forms;
}

bool is_mount_point(const fs::path& folder) {
  struct stat own {};
  struct stat above {};
  return ::stat(folder.c_str(), &own) == 0 && ::stat((folder / "..").c_str(), &above) == 0 &&
         own.st_dev != above.st_dev;
}

// The folder itself, whatever slashes it was given with.
fs::path without_slash(const fs::path& path) {
  const fs::path absolute = fs::absolute(path).lexically_normal();
  return absolute.has_filename() ? absolute : absolute.parent_path();
}

}  // namespace

void replace_text_file(const fs::path& path, const std::string& text, bool durable) {
  std::string staged = path.string() + ".dsckpt-XXXXXX";
  const int fd = ::mkostemp(staged.data(), O_CLOEXEC);
  if (fd < 0) throw IoError({.file = path.string()}, "cannot write", errno);
  mode_t mask = ::umask(0);
  ::umask(mask);
  const bool good = ::fchmod(fd, 0666 & ~mask) == 0 &&
                    ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                    (!durable || ::fsync(fd) == 0);
  const int failed = errno;
  const bool closed = ::close(fd) == 0;
  if (!good || !closed || ::rename(staged.c_str(), path.c_str()) != 0) {
    const int reason = good && closed ? errno : failed;
    ::unlink(staged.c_str());
    throw IoError({.file = path.string()}, "cannot write", reason);
  }
  if (durable) sync_directory(without_slash(path).parent_path());
}

StagedOutput::StagedOutput(const CopyPlan& plan, fs::path target, StageOptions options)
    : plan_(plan), target_(std::move(target)), options_(options) {
  std::error_code ignored;
  const fs::file_status status = fs::status(target_, ignored);
  if (fs::exists(status) && !fs::is_directory(status)) {
    throw UsageError(target_.string() + ": is not a folder");
  }
  if (!fs::exists(status) && fs::exists(fs::symlink_status(target_, ignored))) {
    throw UsageError(target_.string() + ": is a link to nothing");
  }
  // An empty folder is filled from inside: it may be a file system of its own.
  const bool full = fs::exists(status) && !fs::is_empty(target_, ignored);
  whole_ = !fs::exists(status) || (options_.whole_folder && full);
  if (options_.whole_folder && full) {
    if (!options_.force) throw exists_already(target_);
    if (is_mount_point(target_)) {
      throw UsageError(target_.string() + ": is a mount point and cannot be replaced; empty it");
    }
  }

  if (!whole_) check_nothing_in_the_way();
  // How small packed files become is seen when they are written.
  uint64_t needed = 0;
  for (OutputId out = 0; out < plan.outputs().size(); ++out) {
    if (!is_packed(out)) needed += plan.outputs()[out].size;
  }
  const uint64_t free = free_space(existing_part(target_));
  if (needed > free) {
    throw IoError({.file = target_.string()},
                  "needs " + std::to_string(needed) + " bytes, the file system has " +
                      std::to_string(free) + " left",
                  ENOSPC);
  }

  for (size_t i = 0; i < plan.outputs().size(); ++i) files_.emplace_back();
  for (const Digest& digest : plan.digests()) {
    if (!is_direct(digest.out)) continue;
    std::vector<uint64_t>& places = patches_[digest.out];
    places.insert(places.end(), digest.patches.begin(), digest.patches.end());
  }
  for (auto& [out, places] : patches_) std::sort(places.begin(), places.end());
  try {
    const fs::path beside = without_slash(target_).parent_path();
    make_folders(whole_ ? beside : target_, made_folders_);
    const fs::path& place = whole_ ? beside : target_;
    std::string pattern = (place / ".dsckpt-staging-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) {
      throw IoError({.file = place.string()}, "cannot write into the folder", errno);
    }
    staging_ = pattern;
    if (options_.durable && plan.outputs().size() > kSyncedOneByOne) all_at_once_.emplace(staging_);
    // mkdtemp makes a folder that is its owner's alone; what is to stay is an ordinary one in it.
    files_in_ = whole_ ? staging_ / "files" : staging_;
    std::set<fs::path> parents{files_in_};
    for (const PlannedFile& file : plan.outputs()) {
      parents.insert((files_in_ / file.path).parent_path());
    }
    for (const fs::path& parent : parents) {
      std::error_code failed;
      fs::create_directories(parent, failed);
      if (failed)
        throw IoError({.file = parent.string()}, "cannot make the folder", failed.value());
    }
  } catch (...) {
    discard();
    throw;
  }
}

void StagedOutput::check_nothing_in_the_way() const {
  std::error_code ignored;
  for (const PlannedFile& file : plan_.outputs()) {
    const fs::path path = target_ / file.path;
    for (fs::path parent = fs::path(file.path).parent_path(); !parent.empty();
         parent = parent.parent_path()) {
      const fs::file_status folder = fs::status(target_ / parent, ignored);
      if (fs::exists(folder) && !fs::is_directory(folder)) {
        throw UsageError((target_ / parent).string() + ": is not a folder");
      }
    }
    for (const fs::path& form : forms_of(path)) check_path(form);
  }
}

void StagedOutput::check_path(const fs::path& path) const {
  std::error_code ignored;
  const fs::file_status existing = fs::symlink_status(path, ignored);
  if (!fs::exists(existing)) return;
  if (fs::is_directory(existing)) {
    throw UsageError(path.string() + ": a folder has the name of an output file");
  }
  if (!options_.force) throw exists_already(path);
}

StagedOutput::~StagedOutput() {
  if (!committed_) discard();
}

void StagedOutput::discard() noexcept {
  std::error_code ignored;
  files_.clear();
  if (!staging_.empty()) fs::remove_all(staging_, ignored);
  // Without force nothing was there before, so what has been renamed is ours to take back.
  for (OutputId out = 0; !options_.force && out < renamed_; ++out) {
    fs::remove(final_path(out), ignored);
  }
  for (auto folder = made_folders_.rbegin(); folder != made_folders_.rend(); ++folder) {
    fs::remove(*folder, ignored);
  }
}

bool StagedOutput::is_packed(OutputId out) const {
  return options_.packed && is_packable(plan_.outputs()[out].path);
}
fs::path StagedOutput::stored_name(OutputId out) const {
  return plan_.outputs()[out].path + (is_packed(out) ? std::string(kPackedSuffix) : "");
}
fs::path StagedOutput::staged(OutputId out) const {
  return files_in_ / stored_name(out);
}
fs::path StagedOutput::final_path(OutputId out) const {
  return target_ / stored_name(out);
}

OutputFile& StagedOutput::file(OutputId out) {
  File& entry = files_[out];
  // Created at the first write, closed by finish(): only files in progress hold a descriptor.
  std::call_once(entry.created, [&] { entry.file = create(out); });
  return *entry.file;
}

bool StagedOutput::is_direct(OutputId out) const {
  return options_.direct && !is_packed(out) && plan_.outputs()[out].size > kSmallFile;
}

std::unique_ptr<OutputFile> StagedOutput::create(OutputId out) const {
  const uint64_t size = plan_.outputs()[out].size;
  OutputOptions options;
  if (size > kSmallFile && !is_packed(out)) options.size = size;
  options.direct = is_direct(out);
  if (const auto places = patches_.find(out); places != patches_.end()) {
    options.rewritten = places->second;
  }
  return std::make_unique<OutputFile>(staged(out), final_path(out).string(), std::move(options));
}

void StagedOutput::write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) {
  file(out).write_at(offset, bytes);
}

void StagedOutput::finish(OutputId out) {
  OutputFile& done = file(out);
  if (options_.durable && !all_at_once_) done.sync();
  done.close();
  files_[out].file.reset();
}

void StagedOutput::commit() {
  if (all_at_once_) all_at_once_->sync();
  if (whole_) return commit_whole();
  const auto count = static_cast<OutputId>(plan_.outputs().size());
  if (options_.force && count > 1) remove_forms(count - 1, false);
  std::set<fs::path> changed{target_};
  const auto sync_changed = [&] {
    if (all_at_once_) return all_at_once_->sync();
    for (const fs::path& made : made_folders_) changed.insert(made.parent_path());
    for (const fs::path& folder : changed) sync_directory(folder);
    changed.clear();
  };
  for (OutputId out = 0; out < count; ++out) {
    const fs::path path = final_path(out);
    make_folders(path.parent_path(), made_folders_);
    // After a crash the last file may be there only if all the others are.
    if (options_.durable && out + 1 == count) sync_changed();
    // Of its own name the move takes care.
    for (const fs::path& form : forms_of(target_ / plan_.outputs()[out].path)) {
      if (form != path) check_path(form);
    }
    move_into_place(staged(out), path, options_.force);
    ++renamed_;
    if (options_.force) remove_forms(out, true);
    changed.insert(path.parent_path());
  }
  if (options_.durable) sync_changed();
  committed_ = true;
  std::error_code ignored;
  fs::remove_all(staging_, ignored);
}

void StagedOutput::remove_forms(OutputId out, bool but_the_new_one) const {
  const fs::path path = final_path(out);
  for (const fs::path& form : forms_of(target_ / plan_.outputs()[out].path)) {
    if (but_the_new_one && form == path) continue;
    if (::unlink(form.c_str()) != 0 && errno != ENOENT) {
      throw IoError({.file = form.string()}, "cannot replace", errno);
    }
  }
}

void StagedOutput::commit_whole() {
  const fs::path target = without_slash(target_);
  if (options_.durable && !all_at_once_) {
    sync_directory(files_in_);
    std::error_code failed;
    for (const auto& entry : fs::recursive_directory_iterator(files_in_, failed)) {
      if (entry.is_directory()) sync_directory(entry.path());
    }
  }
  std::error_code ignored;
  const bool replaces = options_.whole_folder && options_.force && fs::exists(target, ignored);
  if (!replaces) {
    // A rename takes the place of an empty folder, and of nothing else.
    if (::rename(files_in_.c_str(), target.c_str()) != 0) {
      if (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR) throw exists_already(target);
      throw IoError({.file = target.string()}, "cannot move into place", errno);
    }
  } else if (::renameat2(AT_FDCWD, files_in_.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) !=
             0) {
    // Without an exchange there is a moment in which neither is there.
    const fs::path old = staging_ / "old";
    if (::rename(target.c_str(), old.c_str()) != 0) {
      throw IoError({.file = target.string()}, "cannot replace", errno);
    }
    if (::rename(files_in_.c_str(), target.c_str()) != 0) {
      const int reason = errno;
      ::rename(old.c_str(), target.c_str());
      throw IoError({.file = target.string()}, "cannot move into place", reason);
    }
  }
  committed_ = true;
  if (options_.durable) {
    for (const fs::path& made : made_folders_) sync_directory(made.parent_path());
    sync_directory(target.parent_path());
  }
  fs::remove_all(staging_, ignored);
}

}  // namespace dsckpt
