// What a checkpoint's files hold for training alone: the optimizer's states, and the weights that
// there are masters of. ckpt-pack strip --keep weights leaves it out.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/keyed_hash.h"
#include "checkpoint/model_states.h"
#include "checkpoint/shard.h"
#include "io/input_file.h"

namespace dsckpt {

// Of one checkpoint, which some reader of lib/checkpoint/ has found to be whole. Borrows the
// shards.
class TrainingValues {
 public:
  // `shards` are all files of the tag's folder with shards' names. `without_zero`: of stage 0,
  // where the optimizer is in the model's files and nothing but the weights says whose a master is,
  // so that they stay. Throws as ModelStates.
  TrainingValues(const InputFiles& inputs, const std::vector<Shard>& shards, bool without_zero);

  // The tensors of `shard` that are for training alone.
  std::vector<pickle::Value> in(const Shard& shard) const;
  // Those of zero/optimizer_state.pt of a universal checkpoint, whose masters are in other files.
  static std::vector<pickle::Value> in_universal_wrapper(const pickle::Value& root);
  // Those of what the optimizer keeps of one parameter; all but its count of steps.
  static std::vector<pickle::Value> in_states(const pickle::Value& states);

  // Tied entries of the shard's `module`, alias and owner, that only values tell which are left
  // out, and shared_params does not.
  std::vector<std::pair<std::string, std::string>> untold_aliases(const Shard& shard) const;

 private:
  void find_trained_layers(const std::vector<Shard>& shards);
  bool is_trained_expert(const ShardName& file, const std::string& name) const;
  std::vector<pickle::Value> in_module(const ModelStates& model) const;

  bool without_zero_;
  std::map<const Shard*, ModelStates> models_;  // but those of stage 3, which have no weights
  KeyedSet<std::string> trained_;               // by all of these
  // DeepSpeed's own experts by their names before and after the number, which counts a rank's.
  std::set<std::pair<std::string, std::string>> trained_experts_;
  std::map<uint32_t, std::string> fronts_;  // of the names in a pipeline's layers
};

}  // namespace dsckpt
