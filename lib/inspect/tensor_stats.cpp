#include "inspect/tensor_stats.h"

#include <algorithm>
#include <unordered_map>

#include "inspect/blocks.h"

namespace dsckpt {
namespace {

// For each tensor the index of the one that is read for it: itself, or the one it is tied to, or of
// several tied to what is not given the first.
std::vector<size_t> owners_of(const std::vector<NamedTensor>& tensors) {
  std::unordered_map<std::string, size_t> values;  // by name
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].state.empty() && tensors[i].alias_of.empty()) values.emplace(tensors[i].name, i);
  }
  std::vector<size_t> owners;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string& owner = tensors[i].alias_of;
    owners.push_back(owner.empty() ? i : values.emplace(owner, i).first->second);
  }
  return owners;
}

void add_to_totals(std::vector<TensorStats::Total>& totals, const std::string& state,
                   const Statistics& values) {
  auto total = std::find_if(totals.begin(), totals.end(),
                            [&](const TensorStats::Total& one) { return one.state == state; });
  if (total == totals.end()) total = totals.insert(total, {state, 0, {}});
  ++total->tensors;
  total->values.add(values);
}

}  // namespace

TensorStats tensor_stats(const InputFiles& inputs, const std::vector<NamedTensor>& tensors,
                         const StatsOptions& options, Progress& progress) {
  const std::vector<size_t> owners = owners_of(tensors);
  std::vector<PassItem> items;
  std::vector<size_t> item_of(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (owners[i] != i) continue;
    item_of[i] = items.size();
    items.push_back({tensors[i].label(), {{&inputs, tensors[i].value}}});
  }
  InOrder<Statistics> folded(items.size());
  read_blocks(items, options.threads, progress, [&](const Block& block, const auto& bytes) {
    const DType dtype = items[block.item].sources.front().value.dtype();
    folded.add(block, statistics_of(dtype, bytes.front(), options.histogram));
  });

  std::vector<Statistics> read;
  for (size_t i = 0; i < items.size(); ++i) read.push_back(folded.take(i));
  TensorStats result;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Statistics& values = read[item_of[owners[i]]];
    result.tensors.push_back(values);
    if (owners[i] == i) add_to_totals(result.totals, tensors[i].state, values);
  }
  return result;
}

}  // namespace dsckpt
