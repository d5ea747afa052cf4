// FactorCache: the factors of low-rank updates, in memory while their elements are computed.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

namespace dsckpt {

// Of a PlannedUpdate, as matrices that follow each other, row by row.
struct Factors {
  std::vector<float> left;   // batches x rows x rank
  std::vector<float> right;  // batches x rank x columns
  std::vector<float> magnitude;
  std::vector<double> column_factors;  // magnitude / norm, where the norms are those of columns

  uint64_t bytes() const;
};

// Of one plan, shared by all that read its items. They come in the order of the plan, so that few
// updates are under way at once. Of those that nobody uses the newest stay, up to kMostBytes in
// all. Any thread.
class FactorCache {
 public:
  static constexpr uint64_t kMostBytes = 16 << 20;

  // Those of the update `index`, by `load` if they are not there; whoever else wants them waits.
  // What `load` throws is thrown.
  std::shared_ptr<const Factors> get(uint32_t index, const std::function<Factors()>& load);

 private:
  struct Slot {
    explicit Slot(uint32_t number) : index(number) {}
    const uint32_t index;
    std::mutex mutex;  // of what follows
    std::shared_ptr<const Factors> factors;
  };
  struct Entry {
    std::shared_ptr<Slot> slot;
    uint64_t bytes = 0;  // 0: not loaded yet
  };

  std::shared_ptr<Slot> slot_of(uint32_t index);
  void keep(uint32_t index, uint64_t bytes);

  std::mutex mutex_;
  std::list<Entry> entries_;  // the newest use first
};

}  // namespace dsckpt
