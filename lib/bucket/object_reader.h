// ObjectReader: the objects of one bucket, or the files of one web server, as far files
// (io/far_files.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "base/keyed_hash.h"
#include "bucket/bucket_access.h"
#include "bucket/listing.h"
#include "bucket/read_ahead.h"
#include "io/block_cache.h"
#include "io/far_files.h"

namespace dsckpt {

// Ranges that a run has announced are read ahead (ReadAhead). Other long reads are requests of 8
// MiB at most, into the caller's memory. Other short reads go through cached blocks (BlockCache). A
// short object is one block. The last block of others has 32 KiB, where archives have their
// directories. Other blocks have 16 KiB, and twice as much each time one follows another, up to 2
// MiB, or less for many objects. All requests name the version of the object that was listed.
class ObjectReader : public FarReader, private NumberedObjects {
 public:
  explicit ObjectReader(BucketAccess access);

  // The same key again is the same object.
  void add(const ListedObject& object);
  // Replaces the object with a new version. Not during a read.
  void replace(const ListedObject& object);
  void read_at(const std::filesystem::path& path, uint64_t size, int64_t modified, uint64_t offset,
               std::span<std::byte> out) override;
  std::string version(const std::filesystem::path& path) const override;
  void know(const FarFile& file) override;
  unsigned requests() const override { return access_.requests; }
  std::unique_ptr<FarReadAhead> read_ahead(FarSteps steps) override;

 private:
  struct Object {
    uint32_t number = 0;
    std::string key;
    std::string etag;
    uint64_t size = 0;
    int64_t modified = 0;                 // nanoseconds since the epoch
    std::mutex mutex;                     // of `blocks` and `cache`
    std::map<uint64_t, uint64_t> blocks;  // size by begin, as they were first read
    std::unique_ptr<BlockCache> cache;
  };
  struct BlockPlace {
    uint64_t begin;
    uint64_t size;
    BlockCache* cache;
  };

  void fetch(uint32_t object, uint64_t offset, std::span<std::byte> out,
             const std::atomic<bool>& given_up) override;
  Kept kept(uint32_t object, uint64_t offset, uint64_t size) override;
  void fetch(const Object& object, uint64_t offset, std::span<std::byte> out,
             const std::atomic<bool>* given_up = nullptr);
  void read_some(Object& object, uint64_t offset, std::span<std::byte> out);
  BlockPlace block_at(Object& object, uint64_t offset, uint64_t wanted) const;

  // nullptr: none is known.
  Object* find(const std::filesystem::path& path) const;
  Object& numbered(uint32_t object) const;

  const BucketAccess access_;
  mutable std::shared_mutex mutex_;  // of the next two
  KeyedMap<std::string, std::unique_ptr<Object>> objects_;
  std::vector<Object*> numbered_;
  ReadAhead ahead_;
};

}  // namespace dsckpt
