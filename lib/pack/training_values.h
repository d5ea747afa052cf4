// The values in a checkpoint's files that only training needs: optimizer states, and weights that
// have masters. ckpt-pack strip --keep weights leaves them out.
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

// For one checkpoint, which a reader of lib/checkpoint/ found to be complete. Borrows the shards.
class TrainingValues {
 public:
  // `shards` are all files of the tag's folder with shards' names. `without_zero`: stage 0, where
  // the optimizer is in the model's files. There only the weights tell which master is whose, so
  // masters stay. Throws as ModelStates.
  TrainingValues(const InputFiles& inputs, const std::vector<Shard>& shards, bool without_zero);

  // The tensors of `shard` that only training needs.
  std::vector<pickle::Value> in(const Shard& shard) const;
  // Those in zero/optimizer_state.pt of a universal checkpoint, whose masters are in other files.
  static std::vector<pickle::Value> in_universal_wrapper(const pickle::Value& root);
  // Those in the optimizer's states of one parameter: all but its step count.
  static std::vector<pickle::Value> in_states(const pickle::Value& states);

  // Tied entries (alias and owner) of the shard's `module` whose tie shows only in values that are
  // left out: shared_params does not have them.
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
