// lose_power: a library for LD_PRELOAD that simulates a power failure. Changes that were not synced
// are undone, and the process is killed.
//
//   POWER_AT      the number of the change or sync of files before which it happens, from 1
//   POWER_KEEPS   "nothing": everything that was not synced is undone. "names": only written bytes
//   are undone; files stay made, renamed and removed
//   POWER_BACKUP  a folder on the same file system, for replaced and removed files
//   POWER_COUNT   a file that gets the number of changes and syncs at the end
//
// fsync of a file keeps its bytes, fsync of a folder keeps its names, and syncfs keeps everything.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}
#define NEXT(name) static auto* const real = next<decltype(::name)>(#name)

// System calls of this library itself.
long raw_open(const char* path, int flags) {
  return ::syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0666);
}
void raw_close(long fd) {
  ::syscall(SYS_close, fd);
}
void raw_rename(const std::string& from, const std::string& to) {
  ::syscall(SYS_rename, from.c_str(), to.c_str());
}
void raw_unlink(const std::string& path) {
  if (::syscall(SYS_unlink, path.c_str()) != 0) ::syscall(SYS_rmdir, path.c_str());
}
bool raw_link(const std::string& from, const std::string& to) {
  return ::syscall(SYS_link, from.c_str(), to.c_str()) == 0;
}

ino_t inode_of(const std::string& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0 ? found.st_ino : 0;
}
ino_t inode_of(int fd) {
  struct stat found {};
  return ::fstat(fd, &found) == 0 ? found.st_ino : 0;
}
std::string absolute(int folder, const char* path) {
  if (path[0] == '/') return path;
  if (folder == AT_FDCWD) return fs::current_path() / path;
  return fs::read_symlink("/proc/self/fd/" + std::to_string(folder)) / path;
}
std::string parent(const std::string& path) {
  return fs::path(path).parent_path();
}

// A change that was not synced yet.
struct Change {
  ino_t file = 0;                   // whose bytes it is of; 0: of names
  std::vector<ino_t> folders = {};  // that must be synced to keep it
  std::function<void()> undo;
};

struct State {
  std::recursive_mutex mutex;
  std::vector<Change> changes;
  long at = 0;
  long count = 0;
  bool keeps_names = false;
  int backups = 0;
  bool busy = false;  // calls from within this library

  State() {
    const char* number = std::getenv("POWER_AT");
    const char* keeps = std::getenv("POWER_KEEPS");
    if (number != nullptr) at = std::atol(number);
    keeps_names = keeps != nullptr && std::strcmp(keeps, "names") == 0;
  }
  ~State() {
    const char* file = std::getenv("POWER_COUNT");
    if (file == nullptr) return;
    const long fd = raw_open(file, O_WRONLY | O_CREAT | O_TRUNC);
    const std::string text = std::to_string(count);
    ::syscall(SYS_write, fd, text.data(), text.size());
    raw_close(fd);
  }

  std::string new_backup() {
    return std::string(std::getenv("POWER_BACKUP")) + "/" + std::to_string(++backups);
  }
  [[noreturn]] void lose() {
    for (auto change = changes.rbegin(); change != changes.rend(); ++change) {
      if (change->file != 0 || !keeps_names) change->undo();
    }
    ::kill(::getpid(), SIGKILL);
    for (;;) ::pause();
  }
  void event() {
    if (++count == at) lose();
  }
};

State& state() {
  static State* the_one = new State();
  static const struct AtExit {
    ~AtExit() { delete the_one; }
  } at_exit;
  return *the_one;
}

// Lets one change through at a time. Calls from within this library pass.
class Turn {
 public:
  Turn() : lock_(state().mutex), nested_(state().busy) {
    if (!nested_) state().event();
    state().busy = true;
  }
  ~Turn() { state().busy = nested_; }
  bool nested() const { return nested_; }

 private:
  std::lock_guard<std::recursive_mutex> lock_;
  const bool nested_;
};

// Saves the bytes [offset, offset + size) of the file, and its length.
void note_write(int fd, off_t offset, size_t size) {
  struct stat found {};
  if (::fstat(fd, &found) != 0 || !S_ISREG(found.st_mode)) return;
  const long own = raw_open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR);
  if (own < 0) return;
  std::string old(size, '\0');
  const long got = ::syscall(SYS_pread64, own, old.data(), size, offset);
  old.resize(static_cast<size_t>(std::max(got, 0L)));
  state().changes.push_back({found.st_ino, {}, [own, offset, old, length = found.st_size] {
                               ::syscall(SYS_pwrite64, own, old.data(), old.size(), offset);
                               ::syscall(SYS_ftruncate, own, length);
                             }});
}

void note_made(const std::string& path) {
  state().changes.push_back({0, {inode_of(parent(path))}, [path] { raw_unlink(path); }});
}

// `path` is about to be replaced or removed. Returns a function that restores it.
std::function<void()> keep(const std::string& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return [] {};
  if (S_ISDIR(found.st_mode)) {
    return [path] { ::syscall(SYS_mkdir, path.c_str(), 0777); };
  }
  // The file has one name again in the end.
  const std::string backup = state().new_backup();
  raw_link(path, backup);
  return [path, backup] { raw_rename(backup, path); };
}

void note_removed(const std::string& path, const std::function<void()>& undo) {
  state().changes.push_back({0, {inode_of(parent(path))}, undo});
}

template <typename Call>
auto remove_with(const std::string& path, Call&& call) {
  const Turn turn;
  if (turn.nested()) return call();
  const auto undo = keep(path);
  const auto result = call();
  if (result == 0) note_removed(path, undo);
  return result;
}

template <typename Call>
int rename_with(const std::string& old_name, const std::string& name, Call&& call) {
  const Turn turn;
  const auto undo = keep(name);
  const int result = call();
  if (result == 0) {
    state().changes.push_back(
        {0, {inode_of(parent(old_name)), inode_of(parent(name))}, [old_name, name, undo] {
           raw_rename(name, old_name);
           undo();
         }});
  }
  return result;
}

template <typename Call>
int open_with(const std::string& path, int flags, Call&& call) {
  if ((flags & (O_CREAT | O_TRUNC)) == 0) return call();
  const Turn turn;
  if (turn.nested()) return call();
  struct stat found {};
  const bool exists = ::stat(path.c_str(), &found) == 0;
  if (exists && S_ISREG(found.st_mode) && (flags & O_TRUNC) != 0) {
    const long fd = raw_open(path.c_str(), O_RDWR);
    note_write(static_cast<int>(fd), 0, static_cast<size_t>(found.st_size));
    raw_close(fd);
  }
  const int fd = call();
  if (fd >= 0 && !exists) note_made(path);
  return fd;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  NEXT(open);
  return open_with(path, flags, [&] { return real(path, flags, mode); });
}
int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  NEXT(openat);
  if ((flags & (O_CREAT | O_TRUNC)) == 0) return real(folder, path, flags, mode);
  return open_with(absolute(folder, path), flags, [&] { return real(folder, path, flags, mode); });
}
int mkostemp(char* pattern, int flags) {
  NEXT(mkostemp);
  const Turn turn;
  const int fd = real(pattern, flags);
  if (fd >= 0) note_made(absolute(AT_FDCWD, pattern));
  return fd;
}
ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) {
  NEXT(pwrite);
  const Turn turn;
  if (!turn.nested()) note_write(fd, offset, size);
  return real(fd, bytes, size, offset);
}
ssize_t write(int fd, const void* bytes, size_t size) {
  NEXT(write);
  const Turn turn;
  if (!turn.nested()) note_write(fd, ::lseek(fd, 0, SEEK_CUR), size);
  return real(fd, bytes, size);
}
int fallocate(int fd, int mode, off_t offset, off_t size) {
  NEXT(fallocate);
  const Turn turn;
  note_write(fd, 0, 0);
  return real(fd, mode, offset, size);
}
int fsync(int fd) {
  NEXT(fsync);
  const Turn turn;
  const int result = real(fd);
  const ino_t inode = inode_of(fd);
  for (Change& change : state().changes) std::erase(change.folders, inode);
  std::erase_if(state().changes, [&](const Change& change) {
    return change.file == inode || (change.file == 0 && change.folders.empty());
  });
  return result;
}
int syncfs(int fd) noexcept {
  NEXT(syncfs);
  const Turn turn;
  const int result = real(fd);
  state().changes.clear();
  return result;
}
int rename(const char* from, const char* to) noexcept {
  NEXT(rename);
  return rename_with(absolute(AT_FDCWD, from), absolute(AT_FDCWD, to),
                     [&] { return real(from, to); });
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  NEXT(renameat);
  return rename_with(absolute(from_folder, from), absolute(to_folder, to),
                     [&] { return real(from_folder, from, to_folder, to); });
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  NEXT(renameat2);
  const Turn turn;
  const int result = real(from_folder, from, to_folder, to, flags);
  if (result != 0) return result;
  const std::string old_name = absolute(from_folder, from);
  const std::string name = absolute(to_folder, to);
  state().changes.push_back({0,
                             {inode_of(parent(old_name)), inode_of(parent(name))},
                             [old_name, name, exchanged = (flags & RENAME_EXCHANGE) != 0] {
                               if (!exchanged) return raw_rename(name, old_name);
                               ::syscall(SYS_renameat2, AT_FDCWD, name.c_str(), AT_FDCWD,
                                         old_name.c_str(), RENAME_EXCHANGE);
                             }});
  return result;
}
int link(const char* from, const char* to) noexcept {
  NEXT(link);
  const Turn turn;
  const int result = real(from, to);
  if (result == 0) note_made(absolute(AT_FDCWD, to));
  return result;
}
int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) noexcept {
  NEXT(linkat);
  const Turn turn;
  const int result = real(from_folder, from, to_folder, to, flags);
  if (result == 0) note_made(absolute(to_folder, to));
  return result;
}
int unlink(const char* path) noexcept {
  NEXT(unlink);
  return remove_with(absolute(AT_FDCWD, path), [&] { return real(path); });
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  NEXT(unlinkat);
  return remove_with(absolute(folder, path), [&] { return real(folder, path, flags); });
}
int rmdir(const char* path) noexcept {
  NEXT(rmdir);
  return remove_with(absolute(AT_FDCWD, path), [&] { return real(path); });
}
int remove(const char* path) noexcept {
  NEXT(remove);
  return remove_with(absolute(AT_FDCWD, path), [&] { return real(path); });
}
int mkdir(const char* path, mode_t mode) noexcept {
  NEXT(mkdir);
  const Turn turn;
  const int result = real(path, mode);
  if (result == 0) note_made(absolute(AT_FDCWD, path));
  return result;
}
int mkdirat(int folder, const char* path, mode_t mode) noexcept {
  NEXT(mkdirat);
  const Turn turn;
  const int result = real(folder, path, mode);
  if (result == 0) note_made(absolute(folder, path));
  return result;
}
char* mkdtemp(char* pattern) noexcept {
  NEXT(mkdtemp);
  const Turn turn;
  char* const result = real(pattern);
  if (result != nullptr) note_made(absolute(AT_FDCWD, pattern));
  return result;
}

}  // extern "C"
