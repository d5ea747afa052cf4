// The contents of a checkpoint's model-states files, at any stage.
#pragma once

#include <deque>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/keyed_hash.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/shard.h"
#include "format/tensors_in.h"

namespace dsckpt {

struct CheckpointDraft;

// One model-states file: engine.py save_checkpoint, `state = dict(module=..., ...)`. Borrows the
// shard. A pipeline's files have None for `module`: its layers are in files of their own.
struct ModelStates {
  explicit ModelStates(const Shard& shard);
  ModelStates(ModelStates&&) = default;

  Fields fields;
  // `module` in order (ModuleEntries), and its entries that are not tensors, or of kinds that are
  // not read.
  std::vector<std::pair<std::string, pickle::Value>> module;
  std::vector<std::pair<std::string, pickle::Value>> not_tensors;
  // Entries without their values, which are those of the masters (CheckpointFacts::stripped), and
  // their shapes.
  KeyedMap<std::string, Shape> stripped;
  KeyedMap<std::string_view, pickle::Value> by_name;  // views into `module`
  std::set<std::string> buffer_names;
  // One for each parameter group (stages 1 and 2) or sub-group (stage 3). Empty at stage 0.
  std::vector<NamedShapes> param_shapes;
  KeyedSet<std::string> trainable_names;  // those of param_shapes
  NamedShapes frozen_param_shapes;
  std::vector<std::pair<std::string, std::string>> shared_params;  // alias, owner
  std::optional<pickle::Value> frozen_param_fragments;

  const Shard& shard() const { return fields.shard(); }
  // Takes param_shapes from an optimizer-states file of the same ranks, where releases before 0.6
  // have it, unless the model-states file has it.
  void take_param_shapes(const Shard& optim);
  // Cuts a param_shapes of all parameters, which releases before 0.5.4 wrote, into groups of
  // `group_numels` elements. A parameter counts as its piece of `ranks`. Does nothing if the sums
  // do not tell.
  void split_param_shapes(const std::vector<uint64_t>& group_numels, uint64_t ranks);
  // A note for each of `not_tensors`. Those that should be tensors are without a value.
  void note_not_tensors(CheckpointDraft& draft) const;
  // Adds to shared_params. Throws what NamesSize does.
  void tie(std::string alias, std::string owner);
  // The names that shared_params has as aliases.
  KeyedSet<std::string> aliases() const;
  // True if the optimizer owns it.
  bool is_trainable(const std::string& name) const { return trainable_names.contains(name); }
  // Adds tied entries that shared_params lacks: entries of `module` that are the same view of the
  // same storage. Releases before 0.9.2 wrote no shared_params, and stage 0 writes none today.
  void find_tied_views();
  // The same at stage 3, where parameters in `module` are placeholders: of one storage if they are
  // tied. DeepSpeed's shared_params lacks the names of a module that is twice in one parent, and
  // before 0.9.2 there were none.
  void find_tied_placeholders();
  // True if an entry of `module` of this shape is only a placeholder of a parameter that stage 3
  // has cut.
  bool is_placeholder(const Shape& shape) const;
  // Removes the entries of shared_params whose tensors have different shapes in `module`. DeepSpeed
  // compares addresses, and all parameters without elements have the same.
  void drop_false_aliases();
  // Entries of `module` that are neither buffer, nor alias, nor trainable.
  std::vector<std::pair<std::string, pickle::Value>> rest_of_module() const;

 private:
  void read_param_shapes(const Fields& from);

  NamesSize owners_;
};

// One rank's model-states file. The `states` may be those of another rank whose file has the same
// pickle. Their fields then name that file; read the contents of tensors through `shard`.
struct RankModel {
  const Shard* shard;
  const ModelStates* states;
};

// The model-states files of all ranks, by rank. Contents that several files of an mp rank share are
// there once. Borrows the shards.
class RankModels {
 public:
  explicit RankModels(const std::vector<Shard>& shards);

  const std::vector<RankModel>& ranks() const { return ranks_; }
  // The states that differ, in the order of the first ranks that have them.
  std::deque<ModelStates>& distinct() { return distinct_; }
  const std::deque<ModelStates>& distinct() const { return distinct_; }

 private:
  std::deque<ModelStates> distinct_;
  std::vector<RankModel> ranks_;
};

// For model-states files of two ranks that are not of one save: InconsistentError that names the
// key in which they differ.
[[noreturn]] void throw_other_save(const ModelStates& model, const ModelStates& reference,
                                   std::string_view key);
// Compares the values that all ranks' files of one save have in common, except param_shapes.
void check_same_save(const ModelStates& model, const ModelStates& reference);
// The first key whose value is the same in all model-states files of one save, but not in these;
// "" if there is none.
std::string other_save_key(const pickle::Value& model, const pickle::Value& reference);

// True if `shard`, a model-states file, was saved under ZeRO, which keeps param_shapes there and
// the optimizer in files of its own. An engine without optimizer saves neither; one in bf16 at
// stage 0 since 0.17 the shapes alone, and only its configuration tells.
bool has_optimizer_elsewhere(const Shard& shard);

// Collects the params of a checkpoint in the order zero_to_fp32 gives them, and makes sure that
// every name comes once.
class ParamList {
 public:
  // Throws InconsistentError for a name that was added before.
  void add(Param param);
  bool has(std::string_view name) const { return index_.contains(std::string(name)); }
  const Param* find(std::string_view name) const;

  // The entries of `module` that are persistent buffers and not in the list yet.
  void add_buffers(const ModelStates& states);
  // shared_params. An alias whose owner is not in the list gets its value from `module`. If that
  // has none, the alias is left out with a note, as DeepSpeed does.
  void add_aliases(const ModelStates& states, std::vector<std::string>& notes);

  std::vector<Param> take() { return std::move(params_); }

 private:
  std::vector<Param> params_;
  KeyedMap<std::string, size_t> index_;
  NamesSize owners_;
};

}  // namespace dsckpt
