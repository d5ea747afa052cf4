#include "inspect/tensor_stats.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/keyed_hash.h"

namespace dsckpt {
namespace {

// Returns for each tensor the index of the tensor that is read in its place: itself, or its owner.
// If the owner is not given, it is the first of the names that are tied to it.
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

// A larger tensor is read without repeated elements, to save time. Smaller ones are not, since sums
// differ in their last digits.
constexpr int64_t kMostRepeated = 16 << 20;

TensorSource read_for(const TensorSource& tensor) {
  return tensor.numel() > kMostRepeated ? tensor.without_repeats() : tensor;
}

// Returns the statistics of elements that are repeated `times` times.
Statistics repeated(Statistics values, uint64_t times) {
  for (uint64_t* count : {&values.count, &values.zeros, &values.nans, &values.positive_infinities,
                          &values.negative_infinities}) {
    *count *= times;
  }
  values.squared_deviations *= static_cast<double>(times);
  for (auto* bins : {&values.histogram.negative, &values.histogram.positive}) {
    for (uint64_t& bin : *bins) bin *= times;
  }
  return values;
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
    items.push_back({tensors[i].label(), {{&inputs, read_for(tensors[i].value)}}});
  }
  std::vector<Statistics> read = ask(items, question, reading);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t distinct = elements_of(items[item_of[i]]);
    if (owners[i] != i || distinct == tensors[i].value.numel()) continue;
    const auto times = static_cast<uint64_t>(tensors[i].value.numel() / distinct);
    read[item_of[i]] = repeated(std::move(read[item_of[i]]), times);
  }
  TensorStats result;
  KeyedMap<std::string, size_t> totals;  // of `result`, by state
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Statistics& values = read[item_of[owners[i]]];
    result.tensors.push_back(values);
    if (owners[i] != i) continue;
    const auto [at, is_new] = totals.emplace(tensors[i].state, result.totals.size());
    if (is_new) result.totals.push_back({tensors[i].state, 0, {}});
    TensorStats::Total& total = result.totals[at->second];
    ++total.tensors;
    total.values.add(values);
  }
  return result;
}

}  // namespace dsckpt
