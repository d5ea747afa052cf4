// ObjectReader: the objects of one bucket, as far files (io/far_files.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>

#include "bucket/bucket_access.h"
#include "bucket/listing.h"
#include "io/block_cache.h"
#include "io/far_files.h"

namespace dsckpt {

// Long reads are requests of 8 MiB at most, into the caller's memory. Short ones go through blocks
// that are kept (BlockCache): at the end of an object 128 KiB, where archives have their
// directories; elsewhere 16 KiB, and twice as much each time where one follows the other, up to
// 2 MiB, or less where there are many objects. All requests of an object name the version that was
// listed.
class ObjectReader : public FarReader {
 public:
  explicit ObjectReader(BucketAccess access);

  // Before any is read. The same key again is the same object.
  void add(const ListedObject& object);
  // The object is another one from now on. While none is read.
  void replace(const ListedObject& object);
  void read_at(const std::filesystem::path& path, uint64_t size, int64_t modified, uint64_t offset,
               std::span<std::byte> out) override;
  unsigned requests() const override { return access_.requests; }

 private:
  struct Object {
    std::string key;
    std::string etag;
    uint64_t size = 0;
    std::mutex mutex;                     // of `blocks` and `cache`
    std::map<uint64_t, uint64_t> blocks;  // size by begin, as they were first read
    std::unique_ptr<BlockCache> cache;
  };
  struct BlockPlace {
    uint64_t begin;
    uint64_t size;
    BlockCache* cache;
  };

  void fetch(const Object& object, uint64_t offset, std::span<std::byte> out);
  BlockPlace block_at(Object& object, uint64_t offset, uint64_t wanted) const;

  const BucketAccess access_;
  std::unordered_map<std::string, std::unique_ptr<Object>> objects_;
};

}  // namespace dsckpt
