// report_file_system: a library for LD_PRELOAD that makes folders look like another file system.
//
//   REPORT_FILE_SYSTEM  the result of statfs for everything (f_type), hexadecimal
//   REPORT_ONLY         only for paths that begin with this
//   REPORT_SIZES        a file that gets the length of the longest read and write at an offset, at
//   the end: "read 4194304"
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Longest {
  std::atomic<size_t> read{0};
  std::atomic<size_t> write{0};

  ~Longest() {
    const char* file = std::getenv("REPORT_SIZES");
    if (file == nullptr) return;
    const long fd = ::syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    char text[96];
    const int size =
        std::snprintf(text, sizeof text, "read %zu\nwrite %zu\n", read.load(), write.load());
    ::syscall(SYS_write, fd, text, static_cast<size_t>(size));
    ::syscall(SYS_close, fd);
  }
};

Longest& longest() {
  static Longest the_one;
  return the_one;
}

void note(std::atomic<size_t>& most, size_t size) {
  size_t before = most;
  while (before < size && !most.compare_exchange_weak(before, size)) {
  }
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int statfs(const char* path, struct statfs* found) {
  using Function = int (*)(const char*, struct statfs*);
  static const auto real = next<Function>("statfs");
  const int result = real(path, found);
  const char* type = std::getenv("REPORT_FILE_SYSTEM");
  const char* only = std::getenv("REPORT_ONLY");
  const bool is_meant = only == nullptr || std::strncmp(path, only, std::strlen(only)) == 0;
  if (result == 0 && type != nullptr && is_meant) {
    found->f_type = static_cast<decltype(found->f_type)>(std::strtoul(type, nullptr, 16));
  }
  return result;
}

ssize_t pread(int fd, void* bytes, size_t size, off_t offset) {
  using Function = ssize_t (*)(int, void*, size_t, off_t);
  static const auto real = next<Function>("pread");
  note(longest().read, size);
  return real(fd, bytes, size, offset);
}

ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) {
  using Function = ssize_t (*)(int, const void*, size_t, off_t);
  static const auto real = next<Function>("pwrite");
  note(longest().write, size);
  return real(fd, bytes, size, offset);
}

}  // extern "C"
