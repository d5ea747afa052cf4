// FactorCache: keeps the factors of low-rank updates in memory while their elements are computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

namespace dsckpt {

// The factors of a PlannedUpdate, as matrices one after the other, row by row.
struct Factors {
  std::vector<float> left;          // batches x rows x rank
  std::vector<float> right;         // batches x rank x columns
  std::vector<double> right_norms;  // largest_column_norm() of each batch
  std::vector<float> magnitude;
  std::vector<double> column_factors;  // magnitude / norm, where the norms are those of columns

  uint64_t bytes() const;
};

// For one plan, shared by all readers of its items. Items come in the order of the plan, so few
// updates are in use at once. The newest unused factors stay, up to kMostBytes in all, and two
// whatever their size. Items of two may alternate: experts one by one, of two tensors of all. Any
// thread.
class FactorCache {
 public:
  static constexpr uint64_t kMostBytes = 16 << 20;
  static constexpr size_t kLeast = 2;

  // The factors of the update `index`; `load` makes them if they are not cached. Other threads that
  // need them wait. Throws the errors of `load`.
  std::shared_ptr<const Factors> get(uint32_t index, const std::function<Factors()>& load);

 private:
  struct Slot {
    explicit Slot(uint32_t number) : index(number) {}
    const uint32_t index;
    std::mutex mutex;  // guards what follows
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
