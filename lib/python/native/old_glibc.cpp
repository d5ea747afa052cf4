// Functions that glibc 2.28 lacks, or has under another name or version. With them every glibc
// since 2.28, the oldest that torch's own packages support, can load a module that was linked with
// a newer one.
//
// This object and the archives beside it are linked with the definitions here. The versions are
// those of x86-64 (glibc's sysdeps/unix/sysv/linux/x86_64/64/*.abilist).
#include <dlfcn.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <ctime>

// NAME as it was before it moved into libc.so.6, or got another version.
#define DSCKPT_OLD(result, name, parameters, arguments)                      \
  __asm__(".symver dsckpt_old_" #name "," #name "@GLIBC_2.2.5");             \
  [[gnu::visibility("default")]] extern result dsckpt_old_##name parameters; \
  result name parameters {                                                   \
    return dsckpt_old_##name arguments;                                      \
  }

#pragma GCC visibility push(hidden)
extern "C" {

// These were in libpthread.so.0 before 2.34. Every Python has loaded it.
using Start = void* (*)(void*);
using Destroy = void (*)(void*);
DSCKPT_OLD(int, pthread_create,
           (pthread_t * thread, const pthread_attr_t* how, Start run, void* of),
           (thread, how, run, of))
DSCKPT_OLD(int, pthread_detach, (pthread_t thread), (thread))
DSCKPT_OLD(int, pthread_join, (pthread_t thread, void** result), (thread, result))
DSCKPT_OLD(void*, pthread_getspecific, (pthread_key_t key), (key))
DSCKPT_OLD(int, pthread_setspecific, (pthread_key_t key, const void* value), (key, value))
DSCKPT_OLD(int, pthread_key_create, (pthread_key_t * key, Destroy destroy), (key, destroy))
DSCKPT_OLD(int, __pthread_key_create, (pthread_key_t * key, Destroy destroy), (key, destroy))
DSCKPT_OLD(int, pthread_key_delete, (pthread_key_t key), (key))
DSCKPT_OLD(int, pthread_mutex_trylock, (pthread_mutex_t * mutex), (mutex))
DSCKPT_OLD(int, pthread_once, (pthread_once_t * once, void (*run)()), (once, run))
DSCKPT_OLD(int, pthread_rwlock_init, (pthread_rwlock_t * lock, const pthread_rwlockattr_t* how),
           (lock, how))
DSCKPT_OLD(int, pthread_rwlock_destroy, (pthread_rwlock_t * lock), (lock))
DSCKPT_OLD(int, pthread_rwlock_rdlock, (pthread_rwlock_t * lock), (lock))
DSCKPT_OLD(int, pthread_rwlock_wrlock, (pthread_rwlock_t * lock), (lock))
DSCKPT_OLD(int, pthread_rwlock_unlock, (pthread_rwlock_t * lock), (lock))
DSCKPT_OLD(int, pthread_attr_getstack, (const pthread_attr_t* how, void** begin, size_t* size),
           (how, begin, size))
DSCKPT_OLD(int, pthread_attr_setstacksize, (pthread_attr_t * how, size_t size), (how, size))
DSCKPT_OLD(int, pthread_getattr_np, (pthread_t thread, pthread_attr_t* how), (thread, how))

// These were in libdl.so.2 before 2.34.
DSCKPT_OLD(void*, dlopen, (const char* file, int mode), (file, mode))
DSCKPT_OLD(void*, dlsym, (void* library, const char* name), (library, name))
DSCKPT_OLD(int, dlclose, (void* library), (library))

// 2.29 has other versions, which do not set errno.
DSCKPT_OLD(double, exp2, (double x), (x))
DSCKPT_OLD(double, log2, (double x), (x))

// Before 2.33 these were functions of each program, which called other functions.
constexpr int kStatVersion = 1;
DSCKPT_OLD(int, __xstat, (int version, const char* path, struct stat* found),
           (version, path, found))
DSCKPT_OLD(int, __lxstat, (int version, const char* path, struct stat* found),
           (version, path, found))
DSCKPT_OLD(int, __fxstat, (int version, int file, struct stat* found), (version, file, found))
int stat(const char* path, struct stat* found) {
  return __xstat(kStatVersion, path, found);
}
int lstat(const char* path, struct stat* found) {
  return __lxstat(kStatVersion, path, found);
}
int fstat(int file, struct stat* found) {
  return __fxstat(kStatVersion, file, found);
}
int stat64(const char* path, struct stat64* found) {
  return __xstat(kStatVersion, path, reinterpret_cast<struct stat*>(found));
}
int fstat64(int file, struct stat64* found) {
  return __fxstat(kStatVersion, file, reinterpret_cast<struct stat*>(found));
}
__asm__(".symver dsckpt_old___fxstatat,__fxstatat@GLIBC_2.4");
[[gnu::visibility("default")]] extern int dsckpt_old___fxstatat(int version, int folder,
                                                                const char* path,
                                                                struct stat* found, int flags);
int fstatat(int folder, const char* path, struct stat* found, int flags) {
  return dsckpt_old___fxstatat(kStatVersion, folder, path, found, flags);
}

// New in 2.34, and no more than the kernel's call. It is called after a fork.
int close_range(unsigned first, unsigned last, int flags) {
  return static_cast<int>(syscall(SYS_close_range, first, last, flags));
}

// New in 2.29. Only outputs need it, and the module writes none.
int posix_spawn_file_actions_addfchdir_np(posix_spawn_file_actions_t* actions, int folder) {
  using Add = decltype(&posix_spawn_file_actions_addfchdir_np);
  const auto newer =
      reinterpret_cast<Add>(dlsym(RTLD_DEFAULT, "posix_spawn_file_actions_addfchdir_np"));
  return newer != nullptr ? newer(actions, folder) : ENOSYS;
}

// New in 2.32. The standard library counts references faster if it is not 0.
char __libc_single_threaded = 0;

// New in 2.30. An older glibc waits until the same time by the clock of conditions. If that clock
// is set meanwhile, the wait ends early, which is permitted, or late.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* until) {
  using Wait = decltype(&pthread_cond_clockwait);
  static const auto newer = reinterpret_cast<Wait>(dlsym(RTLD_DEFAULT, "pthread_cond_clockwait"));
  if (newer != nullptr) return newer(condition, mutex, clock, until);
  constexpr int64_t kSecond = 1'000'000'000;
  const auto nanoseconds = [](const timespec& time) {
    return int64_t{time.tv_sec} * kSecond + time.tv_nsec;
  };
  timespec now{};
  if (clock_gettime(clock, &now) != 0) return EINVAL;
  const int64_t left = nanoseconds(*until) - nanoseconds(now);
  clock_gettime(CLOCK_REALTIME, &now);
  const int64_t end = nanoseconds(now) + left;
  const timespec then{.tv_sec = end / kSecond, .tv_nsec = end % kSecond};
  return pthread_cond_timedwait(condition, mutex, &then);
}

}  // extern "C"
#pragma GCC visibility pop
