// The flat tensors of optimizer-states files of stages 1 to 3, one file at a time, for code that
// examines files that the readers refuse.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/model_states.h"
#include "checkpoint/shard.h"

namespace dsckpt {

// One flat tensor of a rank.
struct FlatTensor {
  std::string member;  // "single_partition_of_fp32_groups[0]"
  pickle::Value masters;
  DType dtype = DType::float32;
  uint64_t saved = 0;    // elements in the file
  uint64_t padding = 0;  // of this rank, by the file; not among `saved` unless `padding_kept`
  bool padding_kept = false;
  // Releases before 0.7 cut padding off the last rank's tensor and do not save how much.
  bool padding_untold = false;
  bool muon = false;  // its momenta are of whole parameters

  uint64_t length() const { return padding_kept ? saved : saved + padding; }
};

struct FlatState {
  std::string member;  // "base_optimizer_state.state[0].exp_avg"
  std::string key;
  pickle::Value value;
  uint64_t numel = 0;
};

// The flat tensors of `optim`, by number. Throws CorruptError for fields that are missing or of the
// wrong kind.
std::vector<FlatTensor> flat_tensors(const Shard& optim);
// The one-dimensional optimizer states of flat tensor `index`.
std::vector<FlatState> flat_states_of(const Shard& optim, size_t index);

// The place of a parameter in a group's flat vector.
struct FlatSlice {
  std::string name;
  Shape shape;
  uint64_t begin = 0;
  uint64_t numel = 0;
};

// Stages 1 and 2: the parameters of group `group` in a row, with the paddings between them from
// `optim`. Empty if these do not fit.
std::vector<FlatSlice> flat_slices(const ModelStates& model, const Shard& optim, size_t group);

}  // namespace dsckpt
