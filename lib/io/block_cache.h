// BlockCache: decompressed blocks, kept for the reads that follow.
//
// Reads come in pieces smaller than a block, often of several threads at once, and at ZeRO stage 3
// from all ranks' files in turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace dsckpt {

// Bytes that nobody changes any more.
class Block {
 public:
  explicit Block(size_t size)
      : bytes_(std::make_unique_for_overwrite<std::byte[]>(size)), size_(size) {}
  std::span<std::byte> bytes() { return {bytes_.get(), size_}; }
  std::span<const std::byte> bytes() const { return {bytes_.get(), size_}; }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  size_t size_;
};
using SharedBlock = std::shared_ptr<const Block>;

// The blocks of one file in the cache of the process, which has room for 16 MiB, or what keep() has
// said, and 4 MiB more for each file, up to 256 MiB; what was used last stays. Any thread.
class BlockCache {
 public:
  BlockCache();
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  // From now on the cache has room for so much at least, of whatever files.
  static void keep(size_t bytes);
  // Bytes of all blocks that are in it.
  static size_t held();
  // How many of these objects there are.
  static size_t files();

  // Block `index`; made by `make` if it is not there. Who wants a block that another thread is just
  // making waits for it. Throws what `make` throws, to all who wait. Once it is made, one that is
  // used `once` goes before all others.
  SharedBlock get(uint64_t index, const std::function<SharedBlock()>& make, bool once = false);
  // The same if it is there already; else nullptr.
  SharedBlock find(uint64_t index) const;

 private:
  uint64_t file_;
};

}  // namespace dsckpt
