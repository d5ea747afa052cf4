#include "exec/staging_owner.h"

#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "base/host.h"
#include "base/json.h"
#include "dsckpt/error.h"
#include "exec/journal.h"
#include "io/output_file.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

constexpr const char* kOwner = "owner";
// The maker of a folder signs it at once.
constexpr std::chrono::minutes kLongestUnsigned{1};
constexpr size_t kLongestOwner = 4096;
constexpr int kMostAttempts = 5;
constexpr std::chrono::milliseconds kBetweenAttempts{20};

std::string first_line(const fs::path& file) {
  std::string line;
  std::ifstream stream(file);
  std::getline(stream, line);
  return line;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// proc(5): field 22 of stat, in clock ticks since the kernel's start; "" if there is no such
// process. The same if it has ended and nobody waits for it: the first process of a container may
// never do so.
// The second field may hold blanks and parentheses; the third one is the state.
std::string start_of(int64_t process) {
  const std::string line = first_line("/proc/" + std::to_string(process) + "/stat");
  size_t at = line.rfind(')');
  if (at != std::string::npos && line.substr(at, 3) == ") Z") return "";
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = line.find(' ', at + 1);
  if (at == std::string::npos) return "";
  return line.substr(at + 1, line.find(' ', at + 1) - at - 1);
}

std::string batch_job() {
  const std::string job = environment("SLURM_JOB_ID");
  const std::string step = environment("SLURM_STEP_ID");
  return job.empty() || step.empty() ? job : job + "." + step;
}

json self() {
  std::error_code ignored;
  const auto process = static_cast<int64_t>(::getpid());
  return {{"host", host_name()},
          {"boot", first_line("/proc/sys/kernel/random/boot_id")},
          {"pid_namespace", fs::read_symlink("/proc/self/ns/pid", ignored).string()},
          {"pid", process},
          {"start", start_of(process)},
          {"job", batch_job()}};
}

// nullptr if it is none.
json parse_owner(std::string_view text) {
  json owner = parse_json(text);
  for (const char* key : {"host", "boot", "pid_namespace", "start", "job"}) {
    if (!owner.is_object() || !owner.contains(key) || !owner[key].is_string()) return nullptr;
  }
  if (!owner.contains("pid") || !owner["pid"].is_number_integer()) return nullptr;
  return owner;
}

// nullptr if it is not signed.
json read_owner(int fd) {
  std::string text(kLongestOwner, '\0');
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  if (got <= 0) return nullptr;
  return parse_owner(std::string_view(text).substr(0, static_cast<size_t>(got)));
}

std::string text_of(const json& owner) {
  const std::string job = owner["job"];
  return "process " + std::to_string(owner["pid"].get<int64_t>()) + " on " +
         owner["host"].get<std::string>() + (job.empty() ? "" : ", job " + job);
}

// Returns the state of an owner that does not hold the lock. If locks do not reach other hosts,
// that says nothing of them.
OwnerState state_of(const json& owner) {
  const json here = self();
  if (owner["host"] != here["host"] || here["boot"] == "" || owner["boot"] == "") {
    return OwnerState::unknown;
  }
  if (owner["boot"] != here["boot"]) return OwnerState::dead;
  if (owner["pid_namespace"] != here["pid_namespace"] || owner["start"] == "") {
    return OwnerState::unknown;
  }
  const bool same = start_of(owner["pid"]) == owner["start"].get<std::string>();
  return same ? OwnerState::alive : OwnerState::dead;
}

// Returns whether another process has the lock; else this one has it, if there are locks. A process
// that only asks has it for a moment.
bool is_locked(int fd) {
  for (int attempt = 1;; ++attempt) {
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return false;
    if (attempt == kMostAttempts) return true;
    std::this_thread::sleep_for(kBetweenAttempts);
  }
}

// The signatures of this process on folders that it still writes to, where locks do not tell. A
// process that has given a folder up may resume it itself.
class Signed {
 public:
  void add(int fd) {
    change(fd, [&](const File& file) { files_.insert(file); });
  }
  void remove(int fd) {
    change(fd, [&](const File& file) { files_.erase(file); });
  }
  bool has(int fd) {
    bool found = false;
    change(fd, [&](const File& file) { found = files_.contains(file); });
    return found;
  }

 private:
  using File = std::pair<dev_t, ino_t>;
  template <typename F>
  void change(int fd, F&& with) {
    struct stat about {};
    if (::fstat(fd, &about) != 0) return;
    const std::lock_guard lock(mutex_);
    with(File(about.st_dev, about.st_ino));
  }

  std::mutex mutex_;
  std::set<File> files_;
};

Signed& signed_here() {
  static Signed all;
  return all;
}

bool is_this_process(const json& owner) {
  return owner["pid"] == static_cast<int64_t>(::getpid()) && owner["host"] == host_name();
}

bool is_new(const struct stat& folder) {
  return std::chrono::system_clock::now() <
         std::chrono::system_clock::from_time_t(folder.st_mtime) + kLongestUnsigned;
}

// Removes a folder, or returns a note on what to do about it; "" if nothing is to be said.
std::string clear_left_over(const Folder& place, const std::string& name) {
  const std::string path = (place.path() / name).string();
  std::optional<Folder> ours;
  std::string why;
  try {
    ours = place.own(name);
  } catch (const Error& error) {
    why = error.message();
  }
  if (!ours) {
    const std::optional<struct stat> found = place.look(name);
    return why.empty() || !found || is_new(*found) ? "" : why + "; no run of this user has left it";
  }
  const SignedBy owner = owner_of(*ours);
  if (owner.state == OwnerState::alive) return "";
  if (ours->has(kPlanFile) && has_job(*ours)) {
    return path +
           " is a planned conversion: 'dsckpt commit' with that path finishes it, 'dsckpt "
           "abandon' removes it";
  }
  // The rest of a removal that was killed.
  if (owner.who.empty() && place.remove_folder(name) == 0) return "";
  if (owner.state == OwnerState::unknown) {
    return path + " is an unfinished output" + (owner.who.empty() ? "" : " of " + owner.who) +
           "; if that no longer runs, remove it";
  }
  if (has_job(*ours)) {
    return path +
           " is an unfinished output: the same command resumes it if it has "
           "--resume; else remove it";
  }
  const int kept = place.remove_all(name);
  return kept != 0 ? path + " of a run that was killed cannot be removed: " +
                         std::generic_category().message(kept)
                   : "removed " + path + ", which a run that was killed had left";
}

}  // namespace

StagingOwner::StagingOwner(const Folder& folder)
    : fd_(folder.open_ours(kOwner, {.may_be_new = true, .is_read_too = true})) {
  if (fd_ < 0) return;
  // Not every file system has locks: what a process says of itself must then do.
  if (is_locked(fd_)) {
    ::close(fd_);
    throw UsageError(folder.path().string() + ": another process writes there");
  }
  signed_here().add(fd_);
  json owner = self();
  owner["folder"] = folder.number();
  if (::ftruncate(fd_, 0) != 0 || !write_all(fd_, dump(owner) + "\n")) folder.remove(kOwner);
}

void StagingOwner::unsign() {
  if (fd_ >= 0) static_cast<void>(::ftruncate(fd_, 0));
}

StagingOwner::~StagingOwner() {
  if (fd_ < 0) return;
  signed_here().remove(fd_);
  ::close(fd_);
}

SignedBy owner_of(const Folder& folder) {
  const std::optional<struct stat> about = folder.look(".");
  const OwnerState unsigned_state =
      about && is_new(*about) ? OwnerState::alive : OwnerState::unknown;
  int fd = -1;
  try {
    fd = folder.open_ours(kOwner, {.is_read_too = true});
  } catch (const UsageError&) {
    return {OwnerState::unknown};
  }
  if (fd < 0) return {unsigned_state};
  const bool locked = is_locked(fd);
  const json owner = read_owner(fd);
  const bool is_held = signed_here().has(fd);
  ::close(fd);
  if (locked) return {OwnerState::alive, owner.is_null() ? "" : text_of(owner)};
  if (owner.is_null()) return {unsigned_state};
  OwnerState state = state_of(owner);
  if (state == OwnerState::alive && is_this_process(owner) && !is_held) state = OwnerState::dead;
  if (owner.value("folder", json()) != folder.number()) state = OwnerState::unknown;
  return {state, text_of(owner)};
}

std::string owner_line() {
  return dump(self());
}

SignedBy owner_in(std::string_view line) {
  const json owner = parse_owner(line.substr(0, kLongestOwner));
  if (owner.is_null()) return {};
  OwnerState state = state_of(owner);
  // Two machines may have the same name, say, without a lock between them.
  if (owner["boot"] != self()["boot"]) state = OwnerState::unknown;
  return {state, text_of(owner)};
}

std::vector<std::string> clear_left_overs(const Folder& place) {
  std::vector<std::string> names;
  try {
    names = place.names();
  } catch (const IoError&) {
    return {};
  }
  std::vector<std::string> notes;
  for (const std::string& name : names) {
    const std::optional<struct stat> found = place.look(name);
    if (!name.starts_with(kStagingPrefix) || !found || !S_ISDIR(found->st_mode)) continue;
    std::string note = clear_left_over(place, name);
    if (!note.empty()) notes.push_back(std::move(note));
  }
  return notes;
}

}  // namespace dsckpt
