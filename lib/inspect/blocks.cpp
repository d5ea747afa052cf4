#include "inspect/blocks.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "base/bytes.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "exec/workers.h"
#include "format/read_tensor.h"

namespace dsckpt {
namespace {

// Blocks of two sources stay in the second-level cache between read and use.
constexpr uint64_t kBlockBytes = 256 << 10;

// Returns the position of the first element.
std::tuple<FileId, uint64_t> place_of(const PassItem& item) {
  std::tuple<FileId, uint64_t> place;
  const TensorSource& value = item.sources.front().value;
  if (value.numel() == 0) return place;
  value.lower(0, 1, [&](const SourceRun& run) {
    if (!run.sources().empty()) place = {run.sources().front().file, run.sources().front().offset};
  });
  return place;
}

class Pass {
 public:
  Pass(const std::vector<PassItem>& items, Progress& progress, const OnBlock& on_block)
      : items_(items), progress_(progress), on_block_(on_block), order_(reading_order(items)) {}

  void work() {
    try {
      std::vector<std::vector<std::byte>> buffers;
      while (const std::optional<Block> block = next()) read(*block, buffers);
    } catch (...) {
      failed_ = true;
      throw;
    }
  }

 private:
  std::optional<Block> next() {
    if (progress_.cancelled) throw InterruptedError();
    if (failed_) return std::nullopt;
    const std::lock_guard lock(mutex_);
    for (; at_ < order_.size(); ++at_, number_ = 0) {
      const PassItem& item = items_[order_[at_]];
      const int64_t whole = block_elements(item);
      const auto before = static_cast<int64_t>(item.first_block) * whole;
      const int64_t first = static_cast<int64_t>(number_) * whole;
      const int64_t left = elements_of(item) - first;
      if (left <= 0) continue;
      return Block{order_[at_], item.first_block + number_++, before + first,
                   std::min(left, whole)};
    }
    return std::nullopt;
  }

  void read(const Block& block, std::vector<std::vector<std::byte>>& buffers) {
    const PassItem& item = items_[block.item];
    buffers.resize(std::max(buffers.size(), item.sources.size()));
    std::vector<std::span<const std::byte>> bytes;
    const int64_t before = static_cast<int64_t>(item.first_block) * block_elements(item);
    in_context({.tensor = item.label}, [&] {
      for (size_t i = 0; i < item.sources.size(); ++i) {
        const PassSource& source = item.sources[i];
        buffers[i].resize(kBlockBytes);
        const std::span<std::byte> target =
            std::span(buffers[i])
                .first(static_cast<size_t>(block.count) * size_of(source.value.dtype()));
        read_elements(*source.inputs, source.value, block.first - before, block.count, target);
        bytes.push_back(target);
        progress_.bytes_done += target.size();
      }
      on_block_(block, bytes);
    });
  }

  const std::vector<PassItem>& items_;
  Progress& progress_;
  const OnBlock& on_block_;
  std::vector<size_t> order_;  // of the items
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  size_t at_ = 0;      // in the order
  size_t number_ = 0;  // of the next block within its item's sources
};

}  // namespace

int64_t elements_of(const PassItem& item) {
  return item.sources.front().value.numel();
}

// Returns a power of two. The largest element type of the sources decides.
int64_t block_elements(const PassItem& item) {
  size_t largest = 1;
  for (const PassSource& source : item.sources) {
    largest = std::max(largest, size_of(source.value.dtype()));
  }
  return static_cast<int64_t>(kBlockBytes / largest);
}

uint64_t bytes_of(const PassItem& item) {
  uint64_t bytes = 0;
  for (const PassSource& source : item.sources) bytes += source.value.nbytes();
  return bytes;
}

void check_sizes(const std::vector<PassItem>& items) {
  constexpr uint64_t kMostBytes = uint64_t{4} << 30;
  uint64_t bytes = 0;
  std::set<const InputFiles*> tables;
  for (const PassItem& item : items) {
    for (const PassSource& source : item.sources) {
      bytes = checked_add(bytes, checked_mul(static_cast<uint64_t>(source.value.numel()),
                                             size_of(source.value.dtype())));
      tables.insert(source.inputs);
    }
  }
  if (bytes <= kMostBytes) return;
  uint64_t in_files = 0;
  for (const InputFiles* inputs : tables) {
    for (FileId id = 0; id < inputs->size(); ++id) in_files += (*inputs)[id].size();
  }
  if (bytes / InputFile::kMostExpansion <= in_files) return;
  throw UnsupportedError({}, "the tensors have " + human_bytes(bytes) + " in all, their files " +
                                 human_bytes(in_files));
}

std::vector<size_t> reading_order(const std::vector<PassItem>& items) {
  std::vector<std::tuple<FileId, uint64_t>> places;
  for (const PassItem& item : items) places.push_back(place_of(item));
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return places[a] < places[b]; });
  return order;
}

void read_blocks(const std::vector<PassItem>& items, unsigned threads, Progress& progress,
                 const OnBlock& on_block) {
  Pass pass(items, progress, on_block);
  run_workers(threads, [&] { pass.work(); });
}

}  // namespace dsckpt
