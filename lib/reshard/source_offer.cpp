#include "reshard/source_offer.h"

namespace dsckpt {

SourceOffer source_offer(const CheckpointFacts& source, const ReshardTarget& target) {
  const bool same_wrapper = !source.is_universal() && source.optimizer_wrapper == target.wrapper;
  const bool new_values = source.from_weights() || source.has_given_weights() || source.changed ||
                          source.regridded.has_value();
  const bool same_values = !target.param_dtype && !new_values;
  // A plain optimizer has no copies of the parameters.
  const bool has_masters = source.optimizer_wrapper != EngineWrapper::plain;
  // Only stage 3 has placeholders for the parameters in `module`.
  const bool both_or_no_placeholders = (source.zero_stage == 3) == (target.stage == 3);
  return {
      .starts = source.from_weights(),
      .new_values = new_values,
      .keeps_unknown_state = same_wrapper && !source.from_weights(),
      .optimizer_as_it_is = same_wrapper && source.zero_stage == 0 && !target.new_loss_scaler &&
                            !(source.has_given_weights() && has_masters) &&
                            !source.has_given_states() && !source.changed && !source.regridded,
      .optimizer_is_programs = source.zero_stage != 0 && !source.from_weights(),
      .module_as_it_is = both_or_no_placeholders && same_values,
      .fragments_as_they_are = source.zero_stage == 2 && target.stage == 2 && same_values,
  };
}

}  // namespace dsckpt
