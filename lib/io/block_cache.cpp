#include "io/block_cache.h"

#include <algorithm>
#include <future>
#include <list>
#include <map>
#include <mutex>
#include <utility>

namespace dsckpt {
namespace {

constexpr size_t kLeast = 16 << 20;
constexpr size_t kForEachFile = 4 << 20;
constexpr size_t kMost = 256 << 20;

using Key = std::pair<uint64_t, uint64_t>;  // file and block

struct Entry {
  Key key;
  std::shared_future<SharedBlock> block;
  size_t size = 0;  // 0 while it is being made
};

// There is one for the process.
struct Blocks {
  std::mutex mutex;
  std::list<Entry> entries;  // most recently used first
  std::map<Key, std::list<Entry>::iterator> by_key;
  size_t bytes = 0;
  size_t files = 0;
  size_t least = kLeast;
  uint64_t next_file = 0;

  static Blocks& instance() {
    static Blocks blocks;
    return blocks;
  }

  // Callers of the following functions hold the mutex.
  void erase(std::list<Entry>::iterator entry) {
    bytes -= entry->size;
    by_key.erase(entry->key);
    entries.erase(entry);
  }

  void set_size(std::list<Entry>::iterator entry, size_t size) {
    entry->size = size;
    bytes += size;
    const size_t room = std::min(least + files * kForEachFile, kMost);
    for (auto last = entries.end(); bytes > room && last != entries.begin();) {
      --last;
      // Blocks in the making stay, and so does the newest one.
      if (last->size > 0 && last != entry) erase(last++);
    }
  }

  std::list<Entry>::iterator add(Key key, std::shared_future<SharedBlock> block) {
    entries.push_front({key, std::move(block)});
    by_key[key] = entries.begin();
    return entries.begin();
  }
};

}  // namespace

void BlockCache::keep(size_t bytes) {
  Blocks& blocks = Blocks::instance();
  const std::lock_guard lock(blocks.mutex);
  blocks.least = std::max(blocks.least, bytes);
}

size_t BlockCache::held() {
  Blocks& blocks = Blocks::instance();
  const std::lock_guard lock(blocks.mutex);
  return blocks.bytes;
}

size_t BlockCache::files() {
  Blocks& blocks = Blocks::instance();
  const std::lock_guard lock(blocks.mutex);
  return blocks.files;
}

BlockCache::BlockCache() {
  Blocks& blocks = Blocks::instance();
  const std::lock_guard lock(blocks.mutex);
  ++blocks.files;
  file_ = blocks.next_file++;
}

BlockCache::~BlockCache() {
  Blocks& blocks = Blocks::instance();
  const std::lock_guard lock(blocks.mutex);
  --blocks.files;
  const auto begin = blocks.by_key.lower_bound({file_, 0});
  const auto end = blocks.by_key.lower_bound({file_ + 1, 0});
  for (auto at = begin; at != end;) blocks.erase((at++)->second);
}

SharedBlock BlockCache::get(uint64_t index, const std::function<SharedBlock()>& make, bool once) {
  Blocks& blocks = Blocks::instance();
  const Key key{file_, index};
  std::promise<SharedBlock> promise;
  std::shared_future<SharedBlock> block;
  {
    const std::lock_guard lock(blocks.mutex);
    if (const auto found = blocks.by_key.find(key); found != blocks.by_key.end()) {
      blocks.entries.splice(blocks.entries.begin(), blocks.entries, found->second);
      block = found->second->block;
    } else {
      blocks.add(key, promise.get_future().share());
    }
  }
  if (block.valid()) return block.get();
  try {
    SharedBlock made = make();
    promise.set_value(made);
    const std::lock_guard lock(blocks.mutex);
    if (const auto found = blocks.by_key.find(key); found != blocks.by_key.end()) {
      blocks.set_size(found->second, made->bytes().size());
      if (once) blocks.entries.splice(blocks.entries.end(), blocks.entries, found->second);
    }
    return made;
  } catch (...) {
    promise.set_exception(std::current_exception());
    const std::lock_guard lock(blocks.mutex);
    if (const auto found = blocks.by_key.find(key); found != blocks.by_key.end()) {
      blocks.erase(found->second);
    }
    throw;
  }
}

SharedBlock BlockCache::find(uint64_t index) const {
  Blocks& blocks = Blocks::instance();
  const std::lock_guard lock(blocks.mutex);
  const auto found = blocks.by_key.find({file_, index});
  return found == blocks.by_key.end() || found->second->size == 0 ? nullptr
                                                                  : found->second->block.get();
}

}  // namespace dsckpt
