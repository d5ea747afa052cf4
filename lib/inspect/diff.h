// Diff: the differences between two checkpoints or sets of weights, tensor by tensor.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/difference.h"
#include "inspect/ask.h"
#include "inspect/contents.h"
#include "io/input_file.h"

namespace dsckpt {

struct DiffOptions {
  // The type that floating values are rounded to before they are compared: float32, float16 or
  // bfloat16. nullopt: different types are a difference.
  std::optional<DType> as;
  // Differences within it count as equal. nullopt: every bit counts.
  std::optional<Tolerance> tolerance;
};

// In the order of how much can still be compared.
enum class Verdict : uint8_t { equal, within, values, dtype, shape, only_in_a, only_in_b };
// "equal", "within", "values", "dtype", "shape", "only in A", "only in B"
std::string_view to_string(Verdict verdict);

struct TensorDiff {
  std::string name;
  std::string state;  // NamedTensor::state
  Verdict verdict = Verdict::equal;
  // nullopt if that side lacks the tensor.
  std::optional<DType> dtype_a = {};
  std::optional<DType> dtype_b = {};
  std::optional<Shape> shape_a = {};
  std::optional<Shape> shape_b = {};
  std::optional<DType> as = {};  // what values were compared as; nullopt if they were not
  Difference values = {};        // only if they were compared
  // The label of the first tensor that is the same two under other names; "" if there is none.
  std::string alias_of = {};

  std::string label() const { return state.empty() ? name : name + " " + state; }
};

struct Diff {
  // In the order of A, then those only in B in the order of B.
  std::vector<TensorDiff> tensors;
  Difference total;        // of all values compared, tied ones once; its index means nothing
  std::string largest_in;  // label of the tensor with total.max_absolute; "" if no bits differ
  std::vector<std::string> notes;

  size_t count(Verdict verdict) const;
  // True if nothing differs, or only within the tolerance.
  bool same() const;
  // The tensors that differ, tied ones once. Other names, types and shapes come first, in the order
  // of `tensors`. Then come changed values, the largest relative change first.
  std::vector<const TensorDiff*> by_change() const;
};

// One side: its tensors, and the table of their files. Borrowed.
struct DiffSide {
  const InputFiles* inputs;
  const std::vector<NamedTensor>* tensors;
  bool is_checkpoint;  // rather than weights
};

// Compares tensors of equal names in one pass; memory does not depend on their size. Differences of
// form do not count:
// * A tied name that a side has only under another of its names is not missing.
// * If only one side has optimizer states, weights are compared.
// * Between a checkpoint and weights, tensors without an fp32 master (frozen parameters, buffers)
//   that are float32 in the weights are compared as float32. A conversion to fp32 makes them so.
// Throws as ask() does.
Diff diff_tensors(const DiffSide& a, const DiffSide& b, const DiffOptions& options,
                  const Reading& reading);

}  // namespace dsckpt
