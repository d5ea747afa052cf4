// The values that a whole model was given, on the ranks that it is split over.
#include <memory>
#include <utility>

#include "base/text.h"
#include "checkpoint/other_values.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

constexpr const char* kWholeHint =
    "--tp 1 makes a checkpoint that has it whole, which takes other values";

class GivenSlices {
 public:
  GivenSlices(const Checkpoint& whole, uint32_t tp_rank)
      : whole_(whole), tp_rank_(tp_rank), ranks_(whole.facts().mesh.tp) {}

  void give(Param& mine) const {
    const Param* given = whole_.find(mine.name);
    if (given == nullptr) return;  // a tensor without values
    const bool has_other_states =
        whole_.facts().from_weights() || whole_.facts().has_given_states();
    if (!given->given && !(has_other_states && is_trained(mine))) return;
    in_context({.file = whole_.tag_folder().string(), .tensor = mine.name}, [&] {
      const TpCut cut = cut_of(*given);
      if (given->given) {
        mine.weight = slice_of(cut, given->weight, mine);
        mine.given = true;
      }
      if (!has_other_states) return;
      mine.states.clear();
      for (const ParamState& state : given->states) {
        mine.states.push_back({state.key, slice_of(cut, state.value, mine)});
      }
      mine.step = given->step;
      mine.others = given->others;
    });
  }

 private:
  TpCut cut_of(const Param& given) const {
    if (ranks_ == 1) return TpCut::whole();
    if (given.cut == nullptr) {
      throw UnsupportedError({}, "is cut for " + counted(ranks_, "tensor-parallel rank") +
                                     " by no simple rule, so other values cannot be cut alike")
          .with_hint(kWholeHint);
    }
    if (!given.cut->is_whole() && !given.cut->joins()) {
      throw UnsupportedError({},
                             "is a sum of the tensor-parallel ranks' parts, and other values can "
                             "be divided in any way")
          .with_hint(kWholeHint);
    }
    return given.cut->for_ranks(ranks_);  // it may be that of an earlier grid
  }

  TensorSource slice_of(const TpCut& cut, const TensorSource& value, const Param& mine) const {
    TensorSource slice = cut.slice(value, tp_rank_);
    if (slice.shape() == mine.weight.shape()) return slice;
    throw InconsistentError({}, "would be " + to_text(slice.shape()) + " on tensor-parallel rank " +
                                    std::to_string(tp_rank_) + ", which has " +
                                    to_text(mine.weight.shape()));
  }

  const Checkpoint& whole_;
  uint32_t tp_rank_;
  uint32_t ranks_;
};

}  // namespace

void give_values(std::vector<Param>& params, const Checkpoint& whole, uint32_t tp_rank) {
  const GivenSlices slices(whole, tp_rank);
  for (Param& param : params) slices.give(param);
}

void tell_values(CheckpointFacts& world, const CheckpointFacts& whole) {
  world.values = whole.values;
  world.states = whole.states;
  world.tag = whole.tag;
  world.global_steps = whole.global_steps;
}

}  // namespace dsckpt
