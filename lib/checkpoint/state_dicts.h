// A model's and an optimizer's state_dict, as torch keeps them, as a checkpoint of a run that is
// not DeepSpeed's.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/layout.h"
#include "dsckpt/error.h"
#include "format/training_file.h"
#include "plan/tensor_source.h"

namespace dsckpt {

struct ModelEntry {
  std::string name;
  TensorSource value;
  std::string place = {};  // the same text: the same elements, of a tied parameter; "": of no other
};

// The entry of an optimizer for a parameter, which its state_dict calls by name or number.
struct OptimizerEntry {
  std::vector<ParamState> tensors = {};  // of the parameter's shape
  std::vector<WholeState> others = {};
  ShardValue step = {};
  std::optional<Shape> shape = {};  // of its states
};

struct OptimizerDict {
  struct Group {
    std::vector<std::string> params = {};  // names or numbers
    std::vector<std::string> names = {};   // `param_names`, of as many, where torch was given them
    ShardValue settings = {};
  };
  std::vector<Group> groups = {};
  std::map<std::string, OptimizerEntry> states = {};
};

// The groups of an optimizer's state_dict. Throws CorruptError for one that is none.
std::vector<OptimizerDict::Group> optimizer_groups(const TorchArchive& archive,
                                                   const pickle::Value& state_dict);

// Fills params, groups and facts. If the optimizer numbers its parameters, names come from
// `param_names`, or else from the order that the user knows (names_of_numbers). The next source is
// the order of `model` if it is `in_order`, as a state_dict is and a file of safetensors not. If
// none tells, the states are left out with a note. Without an optimizer (nullptr) all floating
// tensors count as trained. Throws InconsistentError for a name that the model has not.
void read_state_dicts(CheckpointDraft& draft, std::vector<ModelEntry> model,
                      const OptimizerDict* optimizer, bool in_order = true);

// The error for callers that need the states of an optimizer that numbers its parameters. It lists
// the ways to name them.
UnsupportedError unnamed_states(const std::filesystem::path& folder);

// True if a tensor may be a parameter that is trained, by its type and name.
bool may_be_trained(DType dtype, std::string_view name);
// The place of a parameter's kind in Checkpoint::params().
int place_of_kind(const Param& param);
// In the order of Checkpoint::params().
void sort_params(std::vector<Param>& params);
// The order of the states of torch's Adam. No file has that of others.
bool is_before_in_adam(const ParamState& a, const ParamState& b);
// Adds a note that `count` tensors count as frozen by their type alone.
void note_told_by_type(CheckpointDraft& draft, size_t count);

// Options that are for shards of DeepSpeed; `what` the folder is instead.
void refuse_foreign_options(const CheckpointDraft& draft, const std::string& what);

// The only model of a file, or the one of that name. Throws InconsistentError that lists
// them if there are several, UsageError if none is called so.
const KeyedDict& chosen_model(const std::string& name, const TrainingFile& file,
                              const std::string& display);
// The optimizers that may belong to it: those that are called like it, or else all.
std::vector<const KeyedDict*> optimizers_of(const TrainingFile& file, const KeyedDict& model);
// The error for several optimizers that nothing tells apart.
UnsupportedError several_optimizers(const TrainingFile& file, const std::string& display);

}  // namespace dsckpt
