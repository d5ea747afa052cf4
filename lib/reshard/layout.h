// How the target run cuts the parameters: which elements each rank has of each of the optimizer's
// tensors.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "deepspeed/zero_layout.h"
#include "plan/tensor_source.h"
#include "reshard/experts.h"
#include "reshard/target.h"

namespace dsckpt {

// The facts that are needed of the checkpoint whose parameters are laid out.
struct LayoutSource {
  std::span<const Param> params;
  std::string folder = {};  // of the shards, for messages
  std::string file = {};    // the first model-states file
  // The `module` of that file; None where it has none.
  pickle::Value module = {};
  pickle::Value frozen_param_shapes = {};
  // True if frozen_param_shapes, if there, lists everything that is not trained. Else so does the
  // model.
  bool lists_all_frozen = false;
  // True if the run left frozen parameters out (exclude_frozen_parameters). An entry of `module`
  // for them is then a second name of one, which no loader may be told to look for.
  bool leaves_out_frozen = false;
  // True if its optimizer keeps states of whole parameters, in their shapes, as without ZeRO.
  bool has_whole_states = false;

  LayoutSource() = default;
  explicit LayoutSource(const Checkpoint& checkpoint);
};

inline uint64_t numel_of(const Param& param) {
  return static_cast<uint64_t>(param.weight.numel());
}

// Immutable; borrows the parameters and the target. Counts are elements.
class ReshardLayout {
 public:
  using Params = std::vector<const Param*>;
  // A parameter group.
  struct Group {
    ShardValue settings;
    bool experts = false;  // some of its parameters are, or all
    ExpertMesh mesh;       // of the ranks that cut it; ep is 1 for what all of them share
    // One for each expert-parallel rank, in the order of the flat vector.
    std::vector<Params> parts;
    FlatLayout flat = {};  // of a part; stages 1 and 2

    // Names and shapes are the same in all parts.
    const Params& params() const { return parts.front(); }
    const Params& params_of(uint32_t rank) const { return parts[mesh.ep_rank(rank)]; }
  };
  // The parameters that one of the optimizer's tensors is made of: a group, at stage 3 a sub-group,
  // at stage 0 a parameter.
  struct Run {
    size_t group = 0;
    size_t begin = 0;  // in the group's parameters
    size_t end = 0;
  };
  // A part of a parameter in a rank's partition of a flat vector.
  struct Slice {
    const Param* param = nullptr;
    uint64_t begin = 0;  // in the parameter
    uint64_t start = 0;  // in the partition
    uint64_t numel = 0;
  };
  using TensorOf = std::function<TensorSource(const Param&)>;

  // Throws UnsupportedError for parameters of one tensor whose states differ or cannot be cut.
  // Throws InconsistentError for parameters that are not in `module`.
  ReshardLayout(const LayoutSource& source, const ReshardTarget& target);

  const std::vector<Group>& groups() const { return groups_; }
  const std::vector<Run>& runs() const { return runs_; }  // by group
  std::span<const Param* const> params_of(const Run& run, uint32_t rank) const {
    return std::span(groups_[run.group].params_of(rank)).subspan(run.begin, run.end - run.begin);
  }
  // Parameters that the optimizer does not train, those first that the checkpoint calls so.
  const std::vector<const Param*>& frozen() const { return frozen_; }

  // Stages 1 and 2. The contents of rank `rank`'s partition of a group, in order.
  std::vector<Slice> slices(const Group& group, uint32_t rank) const;
  // Elements of it in front of the padding at the vector's end.
  uint64_t real_part(const Group& group, uint32_t rank) const;
  // The partition; with `padded` the padding at the end too.
  TensorSource partition(const Group& group, uint32_t rank, bool padded,
                         const TensorOf& tensor_of) const;

  // The first parameter of `run` that the optimizer has had so far, else nullptr: the states and
  // steps of the others are like its own.
  const Param* stepped(const Run& run, uint32_t rank) const;
  // The part of the tensor made of `run` that rank `rank` has.
  TensorSource of_run(const Run& run, uint32_t rank, const TensorOf& tensor_of) const;
  // The same of state number `i` of its parameters, in the form in which the optimizer keeps it.
  // One of them is stepped().
  TensorSource state_of(const Run& run, uint32_t rank, size_t i) const;
  // Stage 3. Part `rank` of a tensor's elements that `ranks` ranks share, filled up with zeros.
  static TensorSource piece(const TensorSource& tensor, uint32_t rank, uint32_t ranks);

 private:
  class Builder;

  // True if the optimizer has a tensor for each parameter.
  bool is_single() const;
  TensorSource whole_momenta(const Group& group, uint32_t rank, const TensorOf& tensor_of) const;

  const ReshardTarget& target_;
  std::deque<Param> local_;  // experts as their ranks have them
  std::vector<Group> groups_;
  std::vector<Run> runs_;
  std::vector<const Param*> frozen_;
};

}  // namespace dsckpt
