#include "io/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <deque>
#include <fstream>
#include <system_error>
#include <utility>

#include "base/random.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "io/file_system.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

// The kernel's limit.
constexpr int kMostLinks = 40;
constexpr int kFolder = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
constexpr mode_t kOthers = S_IRWXG | S_IRWXO;

std::string user(uid_t id) {
  return "user " + std::to_string(id);
}

std::string kind_of_file(const struct stat& found) {
  switch (found.st_mode & S_IFMT) {
    case S_IFREG:
      return "a file";
    case S_IFDIR:
      return "a folder";
    case S_IFLNK:
      return "a link";
    case S_IFIFO:
      return "a FIFO";
    case S_IFSOCK:
      return "a socket";
    default:
      return "a device";
  }
}

// Inside a user namespace, files of users outside it seem to belong to this user. Mostly they are
// the machine's root's.
uid_t unknown_user() {
  static const uid_t id = [] {
    uid_t known = static_cast<uid_t>(-1);
    std::ifstream map("/proc/self/uid_map");
    uint64_t inside = 0, outside = 0, count = 0;
    if (!(map >> inside >> outside >> count) || count == 0xFFFFFFFF) return known;
    std::ifstream("/proc/sys/kernel/overflowuid") >> known;
    return known;
  }();
  return id;
}

// Returns whether users other than this one and root may change the folder's entries.
bool may_others_write(const struct stat& folder) {
  const bool is_theirs =
      folder.st_uid != 0 && folder.st_uid != ::geteuid() && folder.st_uid != unknown_user();
  return is_theirs || (folder.st_mode & (S_IWGRP | S_IWOTH)) != 0;
}

// Returns whether this user or root made the link, which is in `folder`.
bool is_trusted(const struct stat& link, const struct stat& folder) {
  if (link.st_uid == 0 || link.st_uid == ::geteuid()) return true;
  return link.st_uid == unknown_user() && !may_others_write(folder);
}

UsageError foreign_link(const fs::path& path, uid_t owner) {
  return UsageError(path.string() + ": is a link that " + user(owner) + " has made, and not " +
                    user(::geteuid()) + " or root; nothing is written through it")
      .with_hint("if this is intended, give the path of its target");
}

// Returns "" for a regular file of that user with only one name.
std::string not_a_file_of(const struct stat& found, uid_t owner) {
  if (!S_ISREG(found.st_mode)) {
    return "is " + kind_of_file(found) + " of " + user(found.st_uid) + ", not a regular file";
  }
  if (found.st_uid != owner) {
    return "belongs to " + user(found.st_uid) + ", and not to " + user(owner);
  }
  if (found.st_nlink > 1) {
    return "has " + std::to_string(found.st_nlink) +
           " names (hard links): writing to it would change the others too";
  }
  return "";
}

UsageError refused(const fs::path& path, const std::string& why) {
  return UsageError(path.string() + ": " + why)
      .with_hint("another user may have made it, so it is not used; look at it, and remove it");
}

// Returns the parts of a path, without "/", "." and empty ones.
std::deque<std::string> parts_of(const fs::path& path) {
  std::deque<std::string> parts;
  for (const fs::path& part : path.relative_path()) {
    if (!part.empty() && part != ".") parts.push_back(part.string());
  }
  return parts;
}

// Reads the target of a link that O_PATH | O_NOFOLLOW opened.
std::string target_of_link(int fd, const fs::path& path) {
  std::string text(PATH_MAX, '\0');
  const ssize_t got = ::readlinkat(fd, "", text.data(), text.size());
  if (got <= 0) throw IoError({.file = path.string()}, "cannot read the link", errno);
  text.resize(static_cast<size_t>(got));
  return text;
}

// The position of a walk along a path, from the root, by descriptors.
struct Walk {
  FileDescriptor fd{-1};
  fs::path path = "/";                // the current folder, without links
  std::deque<std::string> left = {};  // parts that were not found
};

// Without `made` the walk ends at the first missing folder; with it missing folders are made and
// listed there. With `only_looks` it also ends at anything that cannot be opened.
Walk walk(const fs::path& given, std::vector<fs::path>* made, bool only_looks = false) {
  Walk at;
  at.fd = FileDescriptor(::open("/", kFolder));
  if (at.fd.get() < 0) throw IoError({.file = "/"}, "cannot open the folder", errno);
  at.left = parts_of(fs::absolute(given));
  int links = 0;
  while (!at.left.empty()) {
    const std::string name = at.left.front();
    const fs::path next = at.path / name;
    int fd = ::openat(at.fd.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT && made != nullptr) {
      if (::mkdirat(at.fd.get(), name.c_str(), 0777) == 0) {
        made->push_back(next);
      } else if (errno != EEXIST) {
        throw IoError({.file = next.string()}, "cannot make the folder", errno);
      }
      fd = ::openat(at.fd.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC);
    }
    if (fd < 0 && (errno == ENOENT || only_looks)) return at;
    if (fd < 0) throw IoError({.file = next.string()}, "cannot open the folder", errno);
    FileDescriptor found(fd);
    struct stat about {};
    if (::fstat(fd, &about) != 0) throw IoError({.file = next.string()}, "cannot stat", errno);
    if (only_looks && !S_ISLNK(about.st_mode) && !S_ISDIR(about.st_mode)) return at;
    at.left.pop_front();
    if (S_ISLNK(about.st_mode)) {
      struct stat folder {};
      if (::fstat(at.fd.get(), &folder) != 0 || !is_trusted(about, folder)) {
        throw foreign_link(next, about.st_uid);
      }
      if (++links > kMostLinks) throw IoError({.file = next.string()}, "cannot open", ELOOP);
      const fs::path target = target_of_link(fd, next);
      const std::deque<std::string> parts = parts_of(target);
      at.left.insert(at.left.begin(), parts.begin(), parts.end());
      if (target.is_absolute()) {
        at.fd = FileDescriptor(::open("/", kFolder));
        at.path = "/";
      }
      continue;
    }
    if (!S_ISDIR(about.st_mode)) {
      throw IoError({.file = next.string()},
                    made != nullptr ? "cannot make the folder" : "cannot open the folder", ENOTDIR);
    }
    at.fd = std::move(found);
    at.path = name == ".." ? at.path.parent_path() : next;
  }
  return at;
}

int result_of(int returned) {
  return returned == 0 ? 0 : errno;
}

// Empties and closes the folder `fd`. Returns 0 or errno.
int empty_folder(int fd);

int remove_entry(int folder, const char* name) {
  if (::unlinkat(folder, name, 0) == 0 || errno == ENOENT) return 0;
  if (errno != EISDIR && errno != EPERM) return errno;
  const int fd = ::openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT ? 0 : errno;
  if (const int failed = empty_folder(fd)) return failed;
  return ::unlinkat(folder, name, AT_REMOVEDIR) == 0 || errno == ENOENT ? 0 : errno;
}

std::vector<std::string> names_in(DIR* entries) {
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(entries)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  return names;
}

int empty_folder(int fd) {
  DIR* const entries = ::fdopendir(fd);
  if (entries == nullptr) {
    const int failed = errno;
    ::close(fd);
    return failed;
  }
  int failed = 0;
  for (const std::string& name : names_in(entries)) {
    const int here = remove_entry(::dirfd(entries), name.c_str());
    if (here != 0) failed = here;
  }
  ::closedir(entries);
  return failed;
}

}  // namespace

Folder::Folder(std::shared_ptr<const FileDescriptor> descriptor, fs::path path)
    : descriptor_(std::move(descriptor)), path_(std::move(path)), owner_(::geteuid()) {}

int Folder::fd() const {
  return descriptor_->get();
}

Folder Folder::at(const fs::path& path) {
  Walk found = walk(path, nullptr);
  if (!found.left.empty()) {
    throw IoError({.file = path.string()}, "cannot open the folder", ENOENT);
  }
  return Folder(std::make_shared<const FileDescriptor>(std::move(found.fd)), path);
}

Folder Folder::make(const fs::path& path, std::vector<fs::path>& made) {
  Walk found = walk(path, &made);
  return Folder(std::make_shared<const FileDescriptor>(std::move(found.fd)), path);
}

uint64_t Folder::number() const {
  struct statfs system {};
  struct stat about {};
  const bool is_known = ::fstatfs(fd(), &system) == 0 && ::fstat(fd(), &about) == 0 &&
                        kind_of(static_cast<uint64_t>(system.f_type)) != FileSystemKind::fuse;
  return is_known ? about.st_ino : 0;
}

// File systems may squash users: a probe file shows the owner that they give to this process's
// files.
std::string Folder::not_ours(const struct stat& found, bool may_be_squashed) const {
  if (!S_ISDIR(found.st_mode)) {
    return "is " + kind_of_file(found) + " of " + user(found.st_uid) + ", not a folder";
  }
  if ((found.st_mode & kOthers) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(found.st_mode & 07777));
    return "belongs to " + user(found.st_uid) + ", and others may enter it (mode " + mode +
           ", and not 0700)";
  }
  if (found.st_uid == ::geteuid()) return "";
  if (may_be_squashed) {
    const std::string probe = ".probe-" + std::to_string(random_number());
    const FileDescriptor file(create(probe, 0600));
    struct stat made {};
    const bool same = file.get() >= 0 && ::fstat(file.get(), &made) == 0;
    if (file.get() >= 0) remove(probe);
    if (same && made.st_uid == found.st_uid) return "";
  }
  return "belongs to " + user(found.st_uid) + ", and not to " + user(::geteuid());
}

Folder Folder::make_own(const std::string& name) const {
  if (::mkdirat(fd(), name.c_str(), 0700) != 0) {
    throw IoError({.file = path_.string()}, "cannot write into the folder", errno);
  }
  std::optional<Folder> made = own(name, true);
  // Others who may rename in this folder have renamed or replaced it.
  if (!made || !made->names().empty()) {
    throw UsageError((path_ / name).string() + ": was replaced right after it was made")
        .with_hint("others rename entries of that folder; give another place");
  }
  return *made;
}

std::optional<Folder> Folder::own(const std::string& name, bool may_be_squashed) const {
  const fs::path path = path_ / name;
  const int fd = ::openat(this->fd(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return std::nullopt;
  if (fd < 0) throw IoError({.file = path.string()}, "cannot open the folder", errno);
  Folder found(std::make_shared<const FileDescriptor>(fd), path);
  struct stat about {};
  if (::fstat(fd, &about) != 0) throw IoError({.file = path.string()}, "cannot stat", errno);
  if (const std::string why = found.not_ours(about, may_be_squashed); !why.empty()) {
    throw refused(path, why);
  }
  found.owner_ = about.st_uid;
  return found;
}

void Folder::check_is_ours(const std::string& name) const {
  const std::optional<struct stat> found = look(name);
  if (!found) return;
  if (!S_ISDIR(found->st_mode)) {
    const std::string why = not_a_file_of(*found, owner_);
    if (!why.empty()) throw refused(path_ / name, why);
    return;
  }
  if (found->st_uid != owner_) {
    throw refused(path_ / name,
                  "belongs to " + user(found->st_uid) + ", and not to " + user(owner_));
  }
  const Folder inside = below(name);
  for (const std::string& each : inside.names()) inside.check_is_ours(each);
}

Folder Folder::below(const fs::path& path, std::vector<fs::path>* made) const {
  Folder at = *this;
  for (const std::string& name : parts_of(path)) {
    const fs::path next = at.path_ / name;
    int fd = ::openat(at.fd(), name.c_str(), kFolder);
    if (fd < 0 && errno == ENOENT && made != nullptr) {
      if (::mkdirat(at.fd(), name.c_str(), 0777) == 0) {
        made->push_back(next);
      } else if (errno != EEXIST) {
        throw IoError({.file = next.string()}, "cannot make the folder", errno);
      }
      fd = ::openat(at.fd(), name.c_str(), kFolder);
    }
    if (fd < 0) {
      const int failed = errno;
      const std::optional<struct stat> found = at.look(name);
      if (found && S_ISLNK(found->st_mode)) {
        throw UsageError(next.string() + ": is a link of " + user(found->st_uid) +
                         "; an output is not written through links in it")
            .with_hint("look where it leads, and remove it");
      }
      throw IoError({.file = next.string()}, "cannot open the folder", failed);
    }
    at.descriptor_ = std::make_shared<const FileDescriptor>(fd);
    at.path_ = next;
  }
  return at;
}

int Folder::create(const fs::path& name, mode_t mode) const {
  return ::openat(fd(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
}

int Folder::open_ours(const fs::path& name, const Use& use) const {
  const int flags = (use.is_read_too ? O_RDWR : O_WRONLY) | (use.may_be_new ? O_CREAT : 0) |
                    (use.direct ? O_DIRECT : 0);
  // O_NONBLOCK makes the open of a FIFO without a reader fail at once. It does not affect files.
  FileDescriptor file(
      ::openat(fd(), name.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666));
  struct stat found {};
  if (file.get() < 0) {
    const int failed = errno;
    const std::optional<struct stat> there = look(name);
    const std::string why = there ? not_a_file_of(*there, owner_) : "";
    if (!why.empty()) throw refused(path_ / name, why);
    errno = failed;
    return -1;
  }
  if (::fstat(file.get(), &found) != 0) return -1;
  if (const std::string why = not_a_file_of(found, owner_); !why.empty()) {
    throw refused(path_ / name, why);
  }
  return file.release();
}

int Folder::open_to_read(const fs::path& name, int flags) const {
  return ::openat(fd(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags);
}

std::optional<struct stat> Folder::look(const fs::path& name) const {
  struct stat found {};
  if (::fstatat(fd(), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) return std::nullopt;
  return found;
}

std::vector<std::string> Folder::names() const {
  const int fd = ::openat(this->fd(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const entries = fd < 0 ? nullptr : ::fdopendir(fd);
  if (entries == nullptr) {
    const int failed = errno;
    if (fd >= 0) ::close(fd);
    throw IoError({.file = path_.string()}, "cannot list the folder", failed);
  }
  std::vector<std::string> names = names_in(entries);
  ::closedir(entries);
  return names;
}

int Folder::make_folder(const fs::path& name, mode_t mode) const {
  return result_of(::mkdirat(fd(), name.c_str(), mode));
}

int Folder::rename(const fs::path& name, const Folder& to, const fs::path& new_name,
                   unsigned flags) const {
  if (flags == 0) return result_of(::renameat(fd(), name.c_str(), to.fd(), new_name.c_str()));
  return result_of(::renameat2(fd(), name.c_str(), to.fd(), new_name.c_str(), flags));
}

int Folder::link(const fs::path& name, const Folder& to, const fs::path& new_name) const {
  return result_of(::linkat(fd(), name.c_str(), to.fd(), new_name.c_str(), 0));
}

int Folder::remove(const fs::path& name) const {
  return result_of(::unlinkat(fd(), name.c_str(), 0));
}

int Folder::remove_folder(const fs::path& name) const {
  return result_of(::unlinkat(fd(), name.c_str(), AT_REMOVEDIR));
}

int Folder::remove_all(const fs::path& name) const {
  return remove_entry(fd(), name.c_str());
}

void Folder::look_anew() const {
  if (file_system_kind(path_) != FileSystemKind::nfs) return;
  const std::string name = ".dsckpt-look-" + std::to_string(random_number());
  if (make_folder(name, 0700) == 0) remove_folder(name);
}

void Folder::sync() const {
  const FileDescriptor fd(::openat(this->fd(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) throw IoError({.file = path_.string()}, "cannot open", errno);
  const int failed = ::fsync(fd.get()) == 0 ? 0 : errno;
  // Some file systems cannot sync directories and report it. They need no sync.
  if (failed != 0 && failed != EINVAL) {
    throw IoError({.file = path_.string()}, "cannot sync", failed);
  }
}

fs::path resolved_path(const fs::path& path) {
  const Walk found = walk(path, nullptr, true);
  fs::path resolved = found.path;
  for (const std::string& part : found.left) resolved /= part;
  return resolved.lexically_normal();
}

fs::path make_temporary_folder(const std::string& prefix) {
  std::error_code failed;
  const fs::path above = fs::temp_directory_path(failed);
  if (failed) {
    throw IoError({}, "there is no folder for temporary files", failed.value())
        .with_hint("TMPDIR names one; it gets names, sizes and times of the input files");
  }
  const fs::path place = resolved_path(above);
  const Folder folder = Folder::at(place);
  const std::optional<struct stat> about = folder.look(".");
  // In a sticky folder others can rename only their own files.
  struct stat without_others = about.value();
  if ((without_others.st_mode & S_ISVTX) != 0) {
    without_others.st_mode &= ~static_cast<mode_t>(S_IWGRP | S_IWOTH);
  }
  if (may_others_write(without_others)) {
    throw UsageError(above.string() +
                     ": is not safe for temporary files: others may rename its entries")
        .with_hint("TMPDIR names another folder");
  }
  const std::string name = prefix + std::to_string(random_number());
  folder.make_own(name);
  return place / name;
}

int create_temporary(const fs::path& path, mode_t mode) {
  return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
}

}  // namespace dsckpt
