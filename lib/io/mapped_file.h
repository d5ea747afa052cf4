// A file mapped into memory, for views that outlive the call that made them. The tools do not map
// (see input_file.h); users who want a tensor without a copy do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "io/input_file.h"

namespace dsckpt {

// The whole of one file, private: writes through the mapping are the process's own and never reach
// the file. Reads of pages that the file no longer has, because it was truncated meanwhile, raise
// SIGBUS. Unmapped with the last shared_ptr. Any thread.
class MappedFile {
 public:
  // Throws IoError.
  static std::shared_ptr<MappedFile> map(const InputFile& file);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  MappedFile(std::byte* data, uint64_t size) : data_(data), size_(size) {}
  std::byte* data_;
  uint64_t size_;
};

}  // namespace dsckpt
