// BlockCache: decompressed blocks, kept for later reads.
//
// Reads are smaller than a block and often come from several threads at once. At ZeRO stage 3 they
// alternate between the files of all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace dsckpt {

// Bytes that never change.
class CachedBlock {
 public:
  explicit CachedBlock(size_t size)
      : bytes_(std::make_unique_for_overwrite<std::byte[]>(size)), size_(size) {}
  std::span<std::byte> bytes() { return {bytes_.get(), size_}; }
  std::span<const std::byte> bytes() const { return {bytes_.get(), size_}; }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  size_t size_;
};
using SharedBlock = std::shared_ptr<const CachedBlock>;

// The blocks of one file in the cache of the process. The cache holds 16 MiB, or the size given to
// keep(), and 4 MiB more for each file, up to 256 MiB. The most recently used blocks stay. Any
// thread.
class BlockCache {
 public:
  BlockCache();
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  // Makes the cache at least so large, for blocks of any file.
  static void keep(size_t bytes);
  // The bytes of all blocks in the cache.
  static size_t held();
  // The number of these objects.
  static size_t files();

  // Block `index`; `make` makes it if it is not cached. A thread that needs a block which another
  // thread is making waits for it. Throws the errors of `make`, in all waiting threads. Blocks that
  // are used `once` leave the cache first.
  SharedBlock get(uint64_t index, const std::function<SharedBlock()>& make, bool once = false);
  // The same if it is cached; else nullptr.
  SharedBlock find(uint64_t index) const;

 private:
  uint64_t file_;
};

}  // namespace dsckpt
