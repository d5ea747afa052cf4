// From the ZeRO worlds of a checkpoint to the parameters of its model.
#pragma once

#include <string>
#include <vector>

#include "base/keyed_hash.h"
#include "checkpoint/pipeline_layers.h"
#include "checkpoint/universal_info.h"
#include "checkpoint/zero_world.h"

namespace dsckpt {

// Joins the worlds by mp rank; facts.mesh says how they are arranged, pipeline stages outermost.
// Pipeline stages have different parameters, or tied ones. Tensor-parallel ranks have slices,
// joined by the rules of universal_checkpoint_info. Expert-parallel ranks have different experts.
// Adds buffers, frozen parameters and aliases, those of pipelines from `layers`. Fills
// draft.params, facts.mesh.ep and draft.unused_patterns. Throws InconsistentError for slices that
// are missing or do not fit. Throws UnsupportedError if slices differ and no rule joins them,
// UsageError for rules of the user that fit no parameter. If ranks have different copies of a
// buffer, it is the first rank's, with a note.
void assemble(CheckpointDraft& draft, std::vector<World>& worlds,
              const std::vector<PipelineLayer>& layers = {});

// The same for one world alone: its slices of the parameters as they are, with all experts, and its
// groups. The groups list experts by their names on their own rank.
void assemble_alone(CheckpointDraft& draft, World world);

// Joins the tensor-parallel ranks' slices of a buffer, by `info` if it has a rule. Each rank has
// run on its own batches: if copies differ, the first one is taken, with a note. Fills in the
// weight, the form and the cut. Throws UnsupportedError for slices of different shapes without a
// rule.
void join_buffer(CheckpointDraft& draft, UniversalInfo& info, Param& param,
                 const std::vector<TensorSource>& slices);

// The parameter groups of a model whose ranks have different parts of each.
class GroupParts {
 public:
  // Adds those of a rank, by the names of the whole model. A name that was added before counts
  // once.
  void add(const std::vector<ParamGroup>& groups);
  // The groups that have the parameters of all ranks. None if a rank has other groups, other
  // hyper-parameters or no groups at all.
  std::vector<ParamGroup> take();
  // The same. None if they lack a trained one of `params`, or have another.
  std::vector<ParamGroup> take_whole(std::span<const Param> params);

 private:
  std::vector<ParamGroup> joined_;
  KeyedSet<std::string> seen_;
  bool is_first_ = true;
  bool fits_ = true;
};

// The names of all parameters and buffers that the files of `worlds` list, in their order, without
// experts. They are for open_pipeline_layers().
std::vector<std::string> names_in(const std::vector<World>& worlds);

}  // namespace dsckpt
