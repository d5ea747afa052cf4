#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/file_descriptor.h"
#include "dsckpt/error.h"

namespace dsckpt {

std::shared_ptr<MappedFile> MappedFile::map(const InputFile& file) {
  if (file.encoding() != Encoding::plain) {
    throw UnsupportedError({.file = file.display()}, "is compressed and cannot be mapped");
  }
  if (file.size() == 0) return std::shared_ptr<MappedFile>(new MappedFile(nullptr, 0));
  const FileDescriptor opened(::open(file.path().c_str(), O_RDONLY | O_CLOEXEC));
  if (!opened) throw IoError({.file = file.display()}, "cannot open", errno);
  struct stat now {};
  const bool same =
      ::fstat(opened.get(), &now) == 0 && static_cast<uint64_t>(now.st_size) == file.size();
  void* const data =
      same ? ::mmap(nullptr, file.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE, opened.get(), 0)
           : MAP_FAILED;
  const int failed = errno;
  if (!same) throw IoError({.file = file.display()}, "changed while it was being read", 0);
  if (data == MAP_FAILED) throw IoError({.file = file.display()}, "cannot map", failed);
  return std::shared_ptr<MappedFile>(new MappedFile(static_cast<std::byte*>(data), file.size()));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace dsckpt
