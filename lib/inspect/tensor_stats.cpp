#include "inspect/tensor_stats.h"

#include <algorithm>
#include <map>
#include <utility>

namespace dsckpt {
namespace {

// For each tensor the index of the one that is read for it: itself, or the one it is tied to, or of
// several tied to what is not given the first.
std::vector<size_t> owners_of(const std::vector<NamedTensor>& tensors) {
  std::map<std::pair<std::string, std::string>, size_t> known;  // by name and state
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].alias_of.empty()) known.emplace(std::pair(tensors[i].name, tensors[i].state), i);
  }
  std::vector<size_t> owners;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const NamedTensor& tensor = tensors[i];
    if (tensor.alias_of.empty()) {
      owners.push_back(i);
    } else {
      owners.push_back(known.emplace(std::pair(tensor.alias_of, tensor.state), i).first->second);
    }
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
                         const StatisticsQuestion& question, const Reading& reading) {
  const std::vector<size_t> owners = owners_of(tensors);
  std::vector<PassItem> items;
  std::vector<size_t> item_of(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (owners[i] != i) continue;
    item_of[i] = items.size();
    items.push_back({tensors[i].label(), {{&inputs, tensors[i].value}}});
  }
  const std::vector<Statistics> read = ask(items, question, reading);
  TensorStats result;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Statistics& values = read[item_of[owners[i]]];
    result.tensors.push_back(values);
    if (owners[i] == i) add_to_totals(result.totals, tensors[i].state, values);
  }
  return result;
}

}  // namespace dsckpt
