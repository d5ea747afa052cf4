// Blocks: every element of many tensors, read once, in parallel, in memory that does not depend on
// how large they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dsckpt/run.h"
#include "io/input_file.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// A tensor in the files of `inputs`, which is borrowed.
struct PassSource {
  const InputFiles* inputs;
  TensorSource value;
};

// What is read together: one tensor, or several with equally many elements.
struct PassItem {
  std::string label;  // the tensor that errors name
  std::vector<PassSource> sources;
  uint64_t option = 0;  // what the question wants to know of it (questions.h)
  // Of the block that the sources begin with: above 0 where they are a part of a tensor.
  size_t first_block = 0;
};

// How many elements its sources have, and a whole block of it.
int64_t elements_of(const PassItem& item);
int64_t block_elements(const PassItem& item);
// Of all sources.
uint64_t bytes_of(const PassItem& item);
// Throws UnsupportedError if the items are far larger than their files: views of the same bytes, a
// bomb.
void check_sizes(const std::vector<PassItem>& items);
// Indices of the items, so that each file is read from front to back as far as they allow.
std::vector<size_t> reading_order(const std::vector<PassItem>& items);

// Elements [first, first + count) of an item's tensor. Where blocks begin depends on the types
// only.
struct Block {
  size_t item = 0;    // index
  size_t number = 0;  // of the item's blocks
  int64_t first = 0;
  int64_t count = 0;
};

// The block's elements in each source of its item, valid during the call. Any thread, several at a
// time.
using OnBlock =
    std::function<void(const Block& block, const std::vector<std::span<const std::byte>>& bytes)>;

// Calls `on_block` for every block of every item (none of an item without elements), in
// reading_order(). `threads` is 0 for default_threads(). Adds the bytes of all elements to
// progress.bytes_total; bytes_done counts them. Throws what read_elements and `on_block` throw,
// with the item's label, and InterruptedError.
void read_blocks(const std::vector<PassItem>& items, unsigned threads, Progress& progress,
                 const OnBlock& on_block);

// Folds what is known of each block into what is known of an item, in the order of the blocks: so
// that rounding does not depend on which thread was first. `Part` has add(const Part&).
template <typename Part>
class InOrder {
 public:
  explicit InOrder(size_t items) : items_(items) {}

  // What is known of blocks [first, first + count) of an item. Any thread.
  void add(size_t item, size_t first, size_t count, Part part) {
    const std::lock_guard lock(mutex_);
    Item& of = items_[item];
    of.waiting.emplace(first, Waiting{std::move(part), count});
    for (auto next = of.waiting.begin(); next != of.waiting.end() && next->first == of.folded;) {
      of.total.add(next->second.part);
      of.folded += next->second.blocks;
      next = of.waiting.erase(next);
    }
  }

  // When all blocks have been added.
  Part take(size_t item) { return std::move(items_[item].total); }

 private:
  struct Waiting {
    Part part;
    size_t blocks;
  };
  struct Item {
    Part total;
    size_t folded = 0;                  // blocks
    std::map<size_t, Waiting> waiting;  // a few of each thread or rank: they are begun in order
  };
  std::mutex mutex_;
  std::vector<Item> items_;
};

}  // namespace dsckpt
