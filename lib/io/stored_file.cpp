#include "io/stored_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <mutex>

#include "base/file_descriptor.h"
#include "base/file_time.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "io/read_limit.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

// Readers hold a lease while they read, so the cache never closes a descriptor under them.
using Lease = std::shared_ptr<const FileDescriptor>;

// File systems without readahead may refuse this.
void turn_readahead_off(int fd) {
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
}

// A file is unchanged if these are the same when it is opened again.
struct Identity {
  dev_t device = 0;
  ino_t inode = 0;
  off_t size = 0;
  int64_t modified_ns = 0;

  bool operator==(const Identity&) const = default;
};

Identity identity_of(const struct stat& s) {
  return {s.st_dev, s.st_ino, s.st_size, modified_ns(s)};
}

std::pair<Lease, Identity> open_regular(const fs::path& path, const std::string& display) {
  // O_NONBLOCK: opening a FIFO must not hang; regular files ignore it.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw IoError({.file = display}, "cannot open", errno);
  Lease lease = std::make_shared<const FileDescriptor>(fd);
  struct stat s {};
  if (::fstat(fd, &s) != 0) throw IoError({.file = display}, "cannot stat", errno);
  if (!S_ISREG(s.st_mode)) throw IoError({.file = display}, "is not a regular file", 0);
  return {std::move(lease), identity_of(s)};
}

IoError has_changed(const std::string& display) {
  return IoError({.file = display}, "changed while it was being read", 0);
}

size_t descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 4096;
  return std::clamp<size_t>(limit.rlim_cur / 2, 16, 4096);
}

}  // namespace

struct StoredFile::Impl {
  fs::path path;
  std::string display;
  Identity identity;
  std::optional<FarFile> far;

  // The open descriptors of the process, most recently used first. `lease` is set exactly while the
  // Impl is in the list.
  inline static std::mutex mutex;
  inline static std::list<Impl*> open_files;
  Lease lease;
  std::list<Impl*>::iterator listed_at;
  bool exactly = false;

  // Callers hold the mutex.
  void keep(Lease fresh) {
    static const size_t limit = descriptor_limit();
    lease = std::move(fresh);
    open_files.push_front(this);
    listed_at = open_files.begin();
    if (open_files.size() > limit) {
      open_files.back()->lease.reset();
      open_files.pop_back();
    }
  }

  Lease borrow() {
    const std::lock_guard lock(mutex);
    if (lease) {
      open_files.splice(open_files.begin(), open_files, listed_at);
      return lease;
    }
    auto [fresh, now] = open_regular(path, display);
    if (now != identity) throw has_changed(display);
    if (exactly) turn_readahead_off(fresh->get());
    keep(fresh);
    return fresh;
  }

  ~Impl() {
    const std::lock_guard lock(mutex);
    if (lease) open_files.erase(listed_at);
  }
};

StoredFile::StoredFile(fs::path path, std::string display, std::optional<FarFile> far)
    : impl_(std::make_unique<Impl>()) {
  impl_->path = std::move(path);
  impl_->display = std::move(display);
  impl_->far = std::move(far);
  if (impl_->far) {
    impl_->identity.size = static_cast<off_t>(impl_->far->size);
    impl_->identity.modified_ns = impl_->far->modified;
    return;
  }
  auto [lease, identity] = open_regular(impl_->path, impl_->display);
  impl_->identity = identity;
  const std::lock_guard lock(Impl::mutex);
  impl_->keep(std::move(lease));
}

StoredFile::~StoredFile() = default;

const fs::path& StoredFile::path() const {
  return impl_->path;
}
const std::string& StoredFile::display() const {
  return impl_->display;
}
int64_t StoredFile::modified() const {
  return impl_->identity.modified_ns;
}
const FarFile* StoredFile::far() const {
  return impl_->far ? &*impl_->far : nullptr;
}
void StoredFile::check_unchanged() const {
  if (impl_->far) {  // remote readers check at every read
    std::byte first;
    if (size() > 0) read_at(0, std::span(&first, 1));
    return;
  }
  struct stat now {};
  if (::stat(impl_->path.c_str(), &now) != 0) {
    throw IoError({.file = impl_->display}, "cannot stat", errno);
  }
  if (identity_of(now) != impl_->identity) throw has_changed(impl_->display);
}
uint64_t StoredFile::size() const {
  return static_cast<uint64_t>(impl_->identity.size);
}

void StoredFile::read_exactly() const {
  const std::lock_guard lock(Impl::mutex);
  impl_->exactly = true;
  if (impl_->lease) turn_readahead_off(impl_->lease->get());
}

void StoredFile::read_at(uint64_t offset, std::span<std::byte> out) const {
  ReadLimit::take(out.size());
  if (impl_->far) {
    return in_context({.file = display(), .offset = offset}, [&] {
      const FarFile& far = *impl_->far;
      if (offset > far.size || out.size() > far.size - offset) {
        throw IoError({}, "file ends " + counted(offset + out.size() - far.size, "byte") + " early",
                      0);
      }
      far.reader->read_at(far.path, far.size, far.modified, offset, out);
    });
  }
  const Lease lease = impl_->borrow();
  while (!out.empty()) {
    const ssize_t got = ::pread(lease->get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw IoError({.file = display(), .offset = offset}, "cannot read", errno);
    if (got == 0) {
      throw IoError({.file = display(), .offset = offset},
                    "file ends " + counted(out.size(), "byte") + " early", 0);
    }
    out = out.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
}

bool StoredFile::is_cached(uint64_t offset) const {
  if (impl_->far) return false;
  const Lease lease = impl_->borrow();
  std::byte byte;
  const iovec into{&byte, 1};
  return ::preadv2(lease->get(), &into, 1, static_cast<off_t>(offset), RWF_NOWAIT) >= 0 ||
         errno != EAGAIN;
}

}  // namespace dsckpt
