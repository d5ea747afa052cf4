// fail_call: a library for LD_PRELOAD that makes one system call fail.
//
//   FAIL_CALL    which: open, read, write, fallocate, fsync, rename, link, close, unlink, mkdir,
//   opendir. Each includes its kind (pread, renameat2, syncfs, ...)
//   FAIL_AT      the number of the call of that kind, from 1
//   FAIL_ERRNO   its errno. 0: it does less than requested (read, write). -1: the process is killed
//   instead (SIGKILL). -2: the process is stopped (SIGSTOP), and the call works. -3: the call takes
//   a second longer.
//   FAIL_COUNTS  a file that gets the number of calls of each kind at the end: "open 17"
//
// A failing call does nothing, except close, which always closes.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr const char* kKinds[] = {"open", "read",  "write",  "fallocate", "fsync",  "rename",
                                  "link", "close", "unlink", "mkdir",     "opendir"};
constexpr size_t kKindCount = std::size(kKinds);

struct State {
  std::atomic<long> counts[kKindCount] = {};
  size_t kind = kKindCount;
  long at = 0;
  int reason = 0;

  State() {
    const char* call = std::getenv("FAIL_CALL");
    const char* number = std::getenv("FAIL_AT");
    const char* text = std::getenv("FAIL_ERRNO");
    for (size_t i = 0; call != nullptr && i < kKindCount; ++i) {
      if (std::strcmp(call, kKinds[i]) == 0) kind = i;
    }
    if (number != nullptr) at = std::atol(number);
    if (text != nullptr) reason = std::atoi(text);
  }
  ~State() {
    const char* file = std::getenv("FAIL_COUNTS");
    if (file == nullptr) return;
    const long fd = ::syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    char line[64];
    for (size_t i = 0; i < kKindCount; ++i) {
      const int size = std::snprintf(line, sizeof line, "%s %ld\n", kKinds[i], counts[i].load());
      ::syscall(SYS_write, fd, line, static_cast<size_t>(size));
    }
    ::syscall(SYS_close, fd);
  }
};

State& state() {
  static State the_one;
  return the_one;
}

// Returns whether this call of a kind must fail.
bool fails(const char* kind) {
  State& s = state();
  const auto index = static_cast<size_t>(
      std::find_if(std::begin(kKinds), std::end(kKinds),
                   [&](const char* name) { return std::strcmp(name, kind) == 0; }) -
      std::begin(kKinds));
  if (++s.counts[index] != s.at || index != s.kind) return false;
  if (s.reason == -1) ::kill(::getpid(), SIGKILL);
  if (s.reason == -2) {
    ::kill(::getpid(), SIGSTOP);
    return false;
  }
  if (s.reason == -3) {
    ::sleep(1);
    return false;
  }
  errno = s.reason;
  return true;
}

bool is_short() {
  return state().reason == 0;
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

#define NEXT(name) static auto* const real = next<decltype(::name)>(#name)

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  NEXT(open);
  return fails("open") ? -1 : real(path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  NEXT(openat);
  return fails("open") ? -1 : real(folder, path, flags, mode);
}
int mkostemp(char* pattern, int flags) {
  NEXT(mkostemp);
  return fails("open") ? -1 : real(pattern, flags);
}
ssize_t pread(int fd, void* bytes, size_t size, off_t offset) {
  NEXT(pread);
  if (!fails("read")) return real(fd, bytes, size, offset);
  return is_short() ? real(fd, bytes, std::max<size_t>(size / 2, 1), offset) : -1;
}
ssize_t preadv2(int fd, const struct iovec* parts, int count, off_t offset, int flags) {
  NEXT(preadv2);
  return fails("read") && !is_short() ? -1 : real(fd, parts, count, offset, flags);
}
ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) {
  NEXT(pwrite);
  if (!fails("write")) return real(fd, bytes, size, offset);
  return is_short() ? real(fd, bytes, std::max<size_t>(size / 2, 1), offset) : -1;
}
ssize_t write(int fd, const void* bytes, size_t size) {
  NEXT(write);
  if (!fails("write")) return real(fd, bytes, size);
  return is_short() ? real(fd, bytes, std::max<size_t>(size / 2, 1)) : -1;
}
int fallocate(int fd, int mode, off_t offset, off_t size) {
  NEXT(fallocate);
  return fails("fallocate") ? -1 : real(fd, mode, offset, size);
}
int fsync(int fd) {
  NEXT(fsync);
  return fails("fsync") ? -1 : real(fd);
}
int syncfs(int fd) noexcept {
  NEXT(syncfs);
  return fails("fsync") ? -1 : real(fd);
}
int rename(const char* from, const char* to) noexcept {
  NEXT(rename);
  return fails("rename") ? -1 : real(from, to);
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  NEXT(renameat);
  return fails("rename") ? -1 : real(from_folder, from, to_folder, to);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  NEXT(renameat2);
  return fails("rename") ? -1 : real(from_folder, from, to_folder, to, flags);
}
int link(const char* from, const char* to) noexcept {
  NEXT(link);
  return fails("link") ? -1 : real(from, to);
}
int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) noexcept {
  NEXT(linkat);
  return fails("link") ? -1 : real(from_folder, from, to_folder, to, flags);
}
int close(int fd) {
  NEXT(close);
  if (!fails("close")) return real(fd);
  const int reason = errno;
  real(fd);
  errno = reason;
  return -1;
}
int unlink(const char* path) noexcept {
  NEXT(unlink);
  return fails("unlink") ? -1 : real(path);
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  NEXT(unlinkat);
  return fails("unlink") ? -1 : real(folder, path, flags);
}
int rmdir(const char* path) noexcept {
  NEXT(rmdir);
  return fails("unlink") ? -1 : real(path);
}
int remove(const char* path) noexcept {
  NEXT(remove);
  return fails("unlink") ? -1 : real(path);
}
int mkdir(const char* path, mode_t mode) noexcept {
  NEXT(mkdir);
  return fails("mkdir") ? -1 : real(path, mode);
}
int mkdirat(int folder, const char* path, mode_t mode) noexcept {
  NEXT(mkdirat);
  return fails("mkdir") ? -1 : real(folder, path, mode);
}
char* mkdtemp(char* pattern) noexcept {
  NEXT(mkdtemp);
  return fails("mkdir") ? nullptr : real(pattern);
}
DIR* opendir(const char* path) {
  NEXT(opendir);
  return fails("opendir") ? nullptr : real(path);
}
DIR* fdopendir(int fd) {
  NEXT(fdopendir);
  return fails("opendir") ? nullptr : real(fd);
}

}  // extern "C"
