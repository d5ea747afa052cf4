// The states that an optimizer keeps of ZeRO's flat tensors.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/shard.h"

namespace dsckpt {

// The states that the optimizer keeps for one flat tensor, on all ranks that share it.
struct FlatStates {
  struct State {
    std::string key;                     // "exp_avg"
    std::vector<TensorSource> pieces;    // one a rank, 1-D, as long as the file has it
    std::vector<pickle::Value> tensors;  // the same in the ranks' pickles
  };
  std::vector<State> states;  // in the optimizer's order
  ShardValue step;
  SharedList<WholeState> others;  // values that are not tensors of one dimension

  // Where state `key` of flat tensor `index` stands in a rank's file.
  static std::string member(std::string_view state_key, size_t index, std::string_view key);
};

// One rank's optimizer_state_dict[state_key]: a torch optimizer's state_dict, or the list of states
// that elastic ZeRO saves. Made once, it is asked for each of its flat tensors. Borrows the shard.
class FlatOptimizer {
 public:
  FlatOptimizer(const Fields& optimizer, std::string_view state_key);

  const Shard& shard() const { return fields_.shard(); }
  std::string_view state_key() const { return state_key_; }
  // The dict of the states of flat tensor `index`; nullopt if there is none.
  std::optional<pickle::Value> states_of(size_t index) const;

 private:
  int64_t number_of(size_t index) const;

  Fields fields_;
  std::string state_key_;
  std::optional<pickle::Value> all_;
  std::vector<std::span<const pickle::Value>> params_;  // the numbers that each group lists
  std::vector<size_t> ends_;  // how many numbers there are up to the end of each group
};

// Reads the states of flat tensor `index` from `ranks`. A value that is not a tensor of one
// dimension belongs to the flat tensor as a whole. Returns nothing if the optimizer has not stepped
// it yet. Throws InconsistentError if the ranks have different states, or states of different
// types.
FlatStates flat_states(const std::vector<const FlatOptimizer*>& ranks, size_t index);

// Throws UnsupportedError if one tensor has more `states` than any optimizer keeps. Parameters may
// share them, and each gets its own.
void check_count(const pickle::DictNode& states);

// Adds `note` unless it is there.
void note_once(std::vector<std::string>& notes, std::string note);

}  // namespace dsckpt
