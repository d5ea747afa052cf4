#include "exec/staged_output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "dsckpt/error.h"
#include "exec/commit.h"

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
    : plan_(plan), options_(options), staging_(new Staging{plan, options, std::move(target)}) {}

StagedOutput::~StagedOutput() {
  if (!committed_) discard();
}

void StagedOutput::prepare() {
  commit_ = choose_commit(*staging_);
  commit_->check();
  check_space();
  for (size_t i = 0; i < plan_.outputs().size(); ++i) files_.emplace_back();
  list_patches();
  make_staging_folder();
  make_folders_of_files();
}

// How small packed files become is seen when they are written.
void StagedOutput::check_space() const {
  uint64_t needed = 0;
  for (OutputId out = 0; out < plan_.outputs().size(); ++out) {
    if (!staging_->is_packed(out)) needed += plan_.outputs()[out].size;
  }
  const uint64_t free = free_space(existing_part(staging_->target));
  if (needed <= free) return;
  throw IoError({.file = staging_->target.string()},
                "needs " + std::to_string(needed) + " bytes, the file system has " +
                    std::to_string(free) + " left",
                ENOSPC);
}

void StagedOutput::list_patches() {
  for (const Digest& digest : plan_.digests()) {
    if (!is_direct(digest.out)) continue;
    std::vector<uint64_t>& places = patches_[digest.out];
    places.insert(places.end(), digest.patches.begin(), digest.patches.end());
  }
  for (auto& [out, places] : patches_) std::sort(places.begin(), places.end());
}

void StagedOutput::make_staging_folder() {
  const fs::path place = commit_->place();
  make_folders(place, staging_->made_folders);
  std::string pattern = (place / ".dsckpt-staging-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    throw IoError({.file = place.string()}, "cannot write into the folder", errno);
  }
  staging_->folder = pattern;
  staging_->files_in = commit_->files_in();
  if (options_.durable && plan_.outputs().size() > kSyncedOneByOne) {
    staging_->all_at_once.emplace(staging_->folder);
  }
}

void StagedOutput::make_folders_of_files() const {
  const fs::path& files_in = staging_->files_in;
  std::set<fs::path> parents{files_in};
  for (const PlannedFile& file : plan_.outputs()) {
    parents.insert((files_in / file.path).parent_path());
  }
  for (const fs::path& parent : parents) {
    std::error_code failed;
    fs::create_directories(parent, failed);
    if (failed) throw IoError({.file = parent.string()}, "cannot make the folder", failed.value());
  }
}

void StagedOutput::discard() noexcept {
  std::error_code ignored;
  files_.clear();
  if (!staging_->folder.empty()) fs::remove_all(staging_->folder, ignored);
  if (commit_) commit_->take_back();
  const std::vector<fs::path>& made = staging_->made_folders;
  for (auto folder = made.rbegin(); folder != made.rend(); ++folder) fs::remove(*folder, ignored);
}

OutputFile& StagedOutput::file(OutputId out) {
  File& entry = files_[out];
  // Created at the first write, closed by finish(): only files in progress hold a descriptor.
  std::call_once(entry.created, [&] { entry.file = create(out); });
  return *entry.file;
}

bool StagedOutput::is_direct(OutputId out) const {
  return options_.direct && !staging_->is_packed(out) && plan_.outputs()[out].size > kSmallFile;
}

std::unique_ptr<OutputFile> StagedOutput::create(OutputId out) const {
  const uint64_t size = plan_.outputs()[out].size;
  OutputOptions options;
  if (size > kSmallFile && !staging_->is_packed(out)) options.size = size;
  options.direct = is_direct(out);
  if (const auto places = patches_.find(out); places != patches_.end()) {
    options.rewritten = places->second;
  }
  return std::make_unique<OutputFile>(staging_->staged(out), staging_->final_path(out).string(),
                                      std::move(options));
}

void StagedOutput::write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) {
  file(out).write_at(offset, bytes);
}

void StagedOutput::finish(OutputId out) {
  OutputFile& done = file(out);
  if (options_.durable && !staging_->all_at_once) done.sync();
  done.close();
  files_[out].file.reset();
}

void StagedOutput::commit() {
  if (staging_->all_at_once) staging_->all_at_once->sync();
  commit_->publish();
  committed_ = true;
  commit_->sync_published();
  std::error_code ignored;
  fs::remove_all(staging_->folder, ignored);
}

}  // namespace dsckpt
