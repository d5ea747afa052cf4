#include "deepspeed/zero_layout.h"

#include <algorithm>

#include "base/bytes.h"

namespace dsckpt {
std::vector<size_t> round_robin_order(size_t count, uint32_t ranks) {
  std::vector<size_t> order;
  order.reserve(count);
  for (size_t first = 0; first < std::min<size_t>(ranks, count); ++first) {
    for (size_t i = first; i < count; i += ranks) order.push_back(i);
  }
  return order;
}

FlatLayout flat_layout(std::span<const uint64_t> numels, uint32_t ranks, uint64_t alignment,
                       uint64_t unit) {
  FlatLayout layout;
  for (size_t i = 0; i < numels.size(); ++i) {
    layout.begins.push_back(layout.used);
    layout.used = checked_add(layout.used, numels[i]);
    const bool last = i + 1 == numels.size();
    layout.paddings.push_back(last ? 0 : round_up(layout.used, alignment) - layout.used);
    layout.used = checked_add(layout.used, layout.paddings.back());
  }
  layout.partition = round_up(layout.used, unit * ranks) / ranks;
  return layout;
}

uint64_t piece_of(uint64_t numel, uint64_t ranks) {
  return div_ceil(numel, ranks);
}

std::vector<size_t> sub_group_ends(std::span<const uint64_t> numels, uint32_t ranks,
                                   uint64_t sub_group_size) {
  std::vector<size_t> ends;
  uint64_t local = 0;
  for (size_t i = 0; i < numels.size(); ++i) {
    local = checked_add(local, piece_of(numels[i], ranks));
    if (local < sub_group_size && i + 1 < numels.size()) continue;
    ends.push_back(i + 1);
    local = 0;
  }
  return ends;
}

}  // namespace dsckpt
