#include "exec/factor_cache.h"

#include <algorithm>
#include <iterator>

namespace dsckpt {

uint64_t Factors::bytes() const {
  return (left.capacity() + right.capacity() + magnitude.capacity()) * sizeof(float) +
         (right_norms.capacity() + column_factors.capacity()) * sizeof(double);
}

std::shared_ptr<const Factors> FactorCache::get(uint32_t index,
                                                const std::function<Factors()>& load) {
  const std::shared_ptr<Slot> slot = slot_of(index);
  const std::lock_guard lock(slot->mutex);
  if (slot->factors == nullptr) {
    slot->factors = std::make_shared<const Factors>(load());
    keep(index, slot->factors->bytes());
  }
  return slot->factors;
}

std::shared_ptr<FactorCache::Slot> FactorCache::slot_of(uint32_t index) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.slot->index == index; });
  if (found == entries_.end()) {
    entries_.push_front({std::make_shared<Slot>(index)});
  } else {
    entries_.splice(entries_.begin(), entries_, found);
  }
  return entries_.front().slot;
}

void FactorCache::keep(uint32_t index, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  uint64_t kept = 0;
  size_t loaded = 0;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (entry->slot->index == index) entry->bytes = bytes;
    kept += entry->bytes;
    loaded += entry->bytes > 0 ? 1 : 0;
    const bool goes =
        kept > kMostBytes && loaded > kLeast && entry->bytes > 0 && entry->slot->index != index;
    entry = goes ? entries_.erase(entry) : std::next(entry);
  }
}

}  // namespace dsckpt
