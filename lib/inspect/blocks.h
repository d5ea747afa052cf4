// Blocks: reads every element of many tensors once, in parallel. Memory does not depend on their
// size.
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

// Tensors that are read together: one, or several with equally many elements.
struct PassItem {
  std::string label;  // the tensor that errors name
  std::vector<PassSource> sources;
  uint64_t option = 0;  // a parameter of the question (questions.h)
  // The number of the first block; above 0 if the sources are a part of a tensor.
  size_t first_block = 0;
};

// The elements of its sources, and of a whole block.
int64_t elements_of(const PassItem& item);
int64_t block_elements(const PassItem& item);
// The bytes of all sources.
uint64_t bytes_of(const PassItem& item);
// Throws UnsupportedError if the items are far larger than their files: a bomb, made of views of
// the same bytes.
void check_sizes(const std::vector<PassItem>& items);
// Indices of the items, ordered so that each file is read from front to back where possible.
std::vector<size_t> reading_order(const std::vector<PassItem>& items);

// Elements [first, first + count) of an item's tensor. Only the types decide where blocks begin.
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

// Calls `on_block` for every block of every item in reading_order(); an item without elements has
// none. `threads` is 0 for default_threads(). progress.bytes_done counts the bytes of elements.
// Throws the errors of read_elements and `on_block`, with the item's label, and InterruptedError.
void read_blocks(const std::vector<PassItem>& items, unsigned threads, Progress& progress,
                 const OnBlock& on_block);

// Combines the parts of an item's blocks in the order of the blocks, so rounding does not depend on
// the speed of threads. `Part` has add(const Part&).
template <typename Part>
class InOrder {
 public:
  explicit InOrder(size_t items) : items_(items) {}

  // Adds the part of blocks [first, first + count) of an item. Any thread.
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

  // The result, when all blocks have been added.
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
