#include "inspect/diff.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "base/kernels.h"
#include "base/text.h"

namespace dsckpt {
namespace {

using Key = std::pair<std::string, std::string>;  // name, state

Key owner_of(const NamedTensor& tensor) {
  return {tensor.alias_of.empty() ? tensor.name : tensor.alias_of, tensor.state};
}

// The tensors of one side by name.
class Side {
 public:
  Side(const DiffSide& side, bool with_states)
      : inputs(side.inputs), is_checkpoint(side.is_checkpoint) {
    for (const NamedTensor& tensor : *side.tensors) {
      if (!tensor.state.empty() && !with_states) continue;
      if (!by_key_.emplace(Key(tensor.name, tensor.state), &tensor).second) continue;
      tensors.push_back(&tensor);
      names_[owner_of(tensor)].push_back(&tensor);
    }
  }

  const NamedTensor* find(const NamedTensor& other) const {
    const auto found = by_key_.find(Key(other.name, other.state));
    return found == by_key_.end() ? nullptr : found->second;
  }

  // Returns another name of `tensor`, a tensor of this side, that `other` has too, or nullptr.
  // `other` must be the same in every call.
  const NamedTensor* shared_name(const NamedTensor& tensor, const Side& other) const {
    const Key owner = owner_of(tensor);
    const auto [known, is_new] = shared_.emplace(owner, nullptr);
    if (!is_new) return known->second;
    for (const NamedTensor* same : names_.at(owner)) {
      if (other.find(*same) == nullptr) continue;
      known->second = same;
      break;
    }
    return known->second;
  }

  const InputFiles* inputs;
  bool is_checkpoint;
  std::vector<const NamedTensor*> tensors;

 private:
  std::map<Key, const NamedTensor*> by_key_;
  std::map<Key, std::vector<const NamedTensor*>> names_;  // by owner
  mutable std::map<Key, const NamedTensor*> shared_;      // results of shared_name(), by owner
};

bool has_states(const DiffSide& side) {
  return std::any_of(side.tensors->begin(), side.tensors->end(),
                     [](const NamedTensor& tensor) { return !tensor.state.empty(); });
}

class Comparison {
 public:
  Comparison(const Side& a, const Side& b, const DiffOptions& options)
      : a_(a), b_(b), options_(options) {}

  Diff run(const Reading& reading) {
    for (const NamedTensor* tensor : a_.tensors) {
      if (const NamedTensor* other = b_.find(*tensor)) {
        pair(*tensor, *other);
      } else {
        lone(*tensor, a_, b_, "A", Verdict::only_in_a);
      }
    }
    for (const NamedTensor* tensor : b_.tensors) {
      if (a_.find(*tensor) == nullptr) lone(*tensor, b_, a_, "B", Verdict::only_in_b);
    }
    compare_values(reading);
    total();
    if (widened_ > 0) {
      diff_.notes.push_back(counted(widened_, "tensor") +
                            " without an fp32 master compared as float32");
    }
    return std::move(diff_);
  }

 private:
  void lone(const NamedTensor& tensor, const Side& side, const Side& other,
            const std::string& label, Verdict verdict) {
    if (const NamedTensor* same = side.shared_name(tensor, other)) {
      diff_.notes.push_back("'" + tensor.label() + "' is in " + label +
                            " only, where it is the same tensor as '" + same->label() + "'");
      return;
    }
    TensorDiff entry{.name = tensor.name, .state = tensor.state, .verdict = verdict};
    const bool in_a = verdict == Verdict::only_in_a;
    (in_a ? entry.dtype_a : entry.dtype_b) = tensor.value.dtype();
    (in_a ? entry.shape_a : entry.shape_b) = tensor.value.shape();
    diff_.tensors.push_back(std::move(entry));
  }

  void pair(const NamedTensor& a, const NamedTensor& b) {
    TensorDiff entry{.name = a.name,
                     .state = a.state,
                     .dtype_a = a.value.dtype(),
                     .dtype_b = b.value.dtype(),
                     .shape_a = a.value.shape(),
                     .shape_b = b.value.shape()};
    const size_t index = diff_.tensors.size();
    if (a.value.shape() != b.value.shape()) {
      entry.verdict = Verdict::shape;
    } else if (const std::optional<DType> as = common_type(a, b); !as) {
      entry.verdict = Verdict::dtype;
    } else {
      entry.as = as;
      // If both sides tie the names, the result for the owners holds for them too.
      const auto [known, is_new] =
          compared_.emplace(std::tuple(owner_of(a), owner_of(b), *as), items_.size());
      if (is_new) {
        items_.push_back(
            {a.label(), {{a_.inputs, a.value}, {b_.inputs, b.value}}, static_cast<uint64_t>(*as)});
      } else {
        entry.alias_of = items_[known->second].label;
      }
      item_of_.emplace(index, known->second);
    }
    diff_.tensors.push_back(std::move(entry));
  }

  std::optional<DType> common_type(const NamedTensor& a, const NamedTensor& b) {
    const DType type_a = a.value.dtype();
    const DType type_b = b.value.dtype();
    const auto converts = [](DType from, DType to) {
      return is_floating_point(from) && (from == to || can_convert(from, to));
    };
    if (options_.as && converts(type_a, *options_.as) && converts(type_b, *options_.as)) {
      return options_.as;
    }
    if (type_a == type_b) return type_a;
    if (has_no_master(a_, a, b_, b) || has_no_master(b_, b, a_, a)) {
      ++widened_;
      return DType::float32;
    }
    return std::nullopt;
  }

  // Returns whether a checkpoint's `tensor` has no float32 master, but float32 weights on the other
  // side.
  static bool has_no_master(const Side& side, const NamedTensor& tensor, const Side& other_side,
                            const NamedTensor& other) {
    const DType type = tensor.value.dtype();
    return side.is_checkpoint && !other_side.is_checkpoint && tensor.state.empty() &&
           is_floating_point(type) && other.value.dtype() == DType::float32;
  }

  void compare_values(const Reading& reading) {
    const std::vector<Difference> differences =
        ask(items_, DifferenceQuestion{.tolerance = options_.tolerance}, reading);
    for (const auto& [index, item] : item_of_) {
      TensorDiff& entry = diff_.tensors[index];
      entry.values = differences[item];
      if (entry.values.outside > 0) {
        entry.verdict = Verdict::values;
      } else if (entry.values.differing > 0) {
        entry.verdict = Verdict::within;
      }
    }
  }

  void total() {
    for (const TensorDiff& entry : diff_.tensors) {
      if (!entry.alias_of.empty()) continue;
      const bool largest =
          entry.values.differing > 0 &&
          (diff_.total.differing == 0 || entry.values.max_absolute > diff_.total.max_absolute);
      if (largest) diff_.largest_in = entry.label();
      diff_.total.add(entry.values);
    }
  }

  const Side& a_;
  const Side& b_;
  const DiffOptions& options_;
  Diff diff_;
  size_t widened_ = 0;
  std::vector<PassItem> items_;
  std::map<std::tuple<Key, Key, DType>, size_t> compared_;  // by owners
  std::map<size_t, size_t> item_of_;                        // by index in the diff's tensors
};

}  // namespace

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::equal:
      return "equal";
    case Verdict::within:
      return "within";
    case Verdict::values:
      return "values";
    case Verdict::dtype:
      return "dtype";
    case Verdict::shape:
      return "shape";
    case Verdict::only_in_a:
      return "only in A";
    case Verdict::only_in_b:
      return "only in B";
  }
  return "";
}

size_t Diff::count(Verdict verdict) const {
  return static_cast<size_t>(
      std::count_if(tensors.begin(), tensors.end(),
                    [&](const TensorDiff& tensor) { return tensor.verdict == verdict; }));
}

bool Diff::same() const {
  return count(Verdict::equal) + count(Verdict::within) == tensors.size();
}

std::vector<const TensorDiff*> Diff::by_change() const {
  std::vector<const TensorDiff*> some;
  for (const TensorDiff& tensor : tensors) {
    if (tensor.verdict != Verdict::equal && tensor.alias_of.empty()) some.push_back(&tensor);
  }
  // NaN and infinity are the largest differences.
  const auto rank = [](const TensorDiff* tensor) {
    if (tensor->values.differing == 0) return std::numeric_limits<double>::infinity();
    const Difference& values = tensor->values;
    const double change =
        is_floating_point(real_part(*tensor->as)) ? values.relative_change() : values.max_relative;
    return std::isnan(change) ? std::numeric_limits<double>::max() : change;
  };
  std::stable_sort(some.begin(), some.end(), [&](const TensorDiff* a, const TensorDiff* b) {
    return std::pair(a->values.differing == 0, rank(a)) >
           std::pair(b->values.differing == 0, rank(b));
  });
  return some;
}

Diff diff_tensors(const DiffSide& a, const DiffSide& b, const DiffOptions& options,
                  const Reading& reading) {
  const bool states_a = has_states(a);
  const bool states_b = has_states(b);
  const bool both = states_a && states_b;
  Diff diff = Comparison(Side(a, both), Side(b, both), options).run(reading);
  if (states_a != states_b) {
    diff.notes.insert(diff.notes.begin(), std::string("only ") + (states_a ? "A" : "B") +
                                              " has optimizer states: weights are compared");
  }
  return diff;
}

}  // namespace dsckpt
