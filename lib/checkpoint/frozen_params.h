// Parameters that no optimizer owns.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/keyed_hash.h"
#include "checkpoint/model_states.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// The frozen parameters of one world by name, in the order in which they were added. Models with
// adapters have tens of thousands of them, so a name is found in constant time.
class FrozenParams {
 public:
  using Entry = std::pair<std::string, TensorSource>;

  // Returns true if it was added. Returns false, and changes nothing, if the name is there already.
  bool add(std::string name, TensorSource value);
  // nullptr if there is none of this name.
  const TensorSource* find(const std::string& name) const;

  size_t size() const { return entries_.size(); }
  std::vector<Entry>::const_iterator begin() const { return entries_.begin(); }
  std::vector<Entry>::const_iterator end() const { return entries_.end(); }

 private:
  std::vector<Entry> entries_;
  KeyedMap<std::string, size_t> index_;
};

// The frozen parameters of stages 1 and 2, in the model's order. First come frozen_param_fragments,
// which stage 2 keeps beside `module`, then those in `module` alone. Throws InconsistentError for
// one that does not have the shape in frozen_param_shapes.
FrozenParams whole_frozen(const ModelStates& model);

// The frozen parameters of stage 3, put together from the fragments of all ranks. Entries that are
// whole in `module` but no buffers are added: a module's _extra_state, a buffer's second name.
// Throws InconsistentError for a fragment that is not a rank's piece (ceil(numel / ranks)
// elements), CorruptError for one that is missing. Quantized ones are left out: no file has the
// data that undoes it.
FrozenParams cut_frozen(const std::vector<RankModel>& models);

}  // namespace dsckpt
