// Universal checkpoints of models that were split over pipeline stages, tensor-parallel or
// expert-parallel ranks. The files of all ranks together describe the whole model.
//
// The folder has whole parameters, each under its name in a model that is not split. The
// model-states files have those of a rank: its stage's, its slices, its local experts.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/layout.h"
#include "checkpoint/model_states.h"
#include "checkpoint/zero_world.h"

namespace dsckpt {

// The files of one parameter by what they hold: "fp32", "exp_avg", "step".
using UniversalFiles = std::map<std::string, const Shard*>;

class SplitModel {
 public:
  using Folders = std::map<std::string, UniversalFiles>;  // by parameter

  // Borrows all. `models` are those of all ranks, by mp rank.
  SplitModel(const CheckpointDraft& draft, const RankModels& models, const Folders& folders);

  // The trained parameters by group, in the order of the pipeline's stages. Their shapes are those
  // on the first rank that has them. All experts are in the place of the local ones. At stage 0 no
  // file lists them: they are all that have a state beside the master, or, if none has, everything.
  std::vector<NamedShapes> trained() const;
  // The shape of trained parameter `name`; a rank has `local` of it, and its file `stored`.
  // Tensor-parallel slices, experts and vocabularies have the file's shape; others have `local`.
  // Throws InconsistentError if they cannot be of one parameter.
  Shape whole_shape(const std::string& name, const Shape& local, const Shape& stored,
                    bool is_vocabulary) const;
  // Fills draft.params from `owned`, whose forms are `forms`, and from buffers, frozen and tied
  // parameters. The function `value_of` gives the value in the file of a parameter.
  void add_params(CheckpointDraft& draft, std::vector<OwnedParam> owned,
                  const std::map<std::string, UniversalForm>& forms,
                  const std::function<TensorSource(const Shard&)>& value_of) const;

 private:
  std::vector<NamedShapes> trained_at_stage_0() const;
  // Calls `add` with `name`, or, if it is of a rank's first expert, with that of each expert until
  // it returns false.
  void each_whole_name(const std::string& name, const std::function<bool(std::string)>& add) const;
  FrozenParams frozen_of(const ModelStates& world) const;
  int64_t experts_below(const std::string& before) const;
  std::optional<int64_t> same_num_experts() const;
  bool is_sliced() const { return draft_.facts.mesh.tp > 1; }

  const CheckpointDraft& draft_;
  std::vector<const ModelStates*> worlds_;  // the first rank of each
  const std::vector<RankModel>& ranks_;
  const Folders& folders_;
  std::optional<int64_t> num_experts_;  // of each layer, where they have the same
};

}  // namespace dsckpt
