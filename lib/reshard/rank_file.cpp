#include "reshard/rank_file.h"

#include <string>
#include <utility>

#include "deepspeed/config_pickle.h"
#include "deepspeed/keys.h"
#include "pickle/python_objects.h"
#include "reshard/run_facts.h"

namespace dsckpt {
using pickle::Document;
using pickle::Value;
namespace {

bool has_tuple_shapes(const Checkpoint& checkpoint) {
  const Value shapes = saved_param_shapes(checkpoint);
  for (const Value& group : shapes.sequence_or_empty()) {
    if (!group.is_mapping() || group.as_dict().items.empty()) continue;
    return group.as_dict().items.front().second.is(pickle::Kind::tuple);
  }
  return false;
}

}  // namespace

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
                            !target.expert_optimizers &&
                            !(source.has_given_weights() && has_masters) &&
                            !source.has_given_states() && !source.changed && !source.regridded,
      .optimizer_is_programs = source.zero_stage != 0 && !source.from_weights(),
      .module_as_it_is = both_or_no_placeholders && same_values,
      .fragments_as_they_are = source.zero_stage == 2 && target.stage == 2 && same_values,
  };
}

ShardSource::ShardSource(const Checkpoint& source, const ReshardTarget& new_run)
    : checkpoint(source),
      target(new_run),
      layout(LayoutSource(source), new_run),
      offer(source_offer(source.facts(), new_run)),
      wrapper(source.wrapper_state()),
      ds_version(new_run.ds_version.empty() ? source.facts().ds_version : new_run.ds_version),
      has_tuple_shapes(dsckpt::has_tuple_shapes(source)) {}

std::optional<Value> ds_config_value(const RankFile& file) {
  if (file.target().ds_config) return pickle_of(file.document(), *file.target().ds_config);
  const TorchArchive& archive = *file.from.checkpoint.files().model.front().archive;
  return file.copy.of(archive, archive.root().find_or_none(keys::kDsConfig));
}

Value shape_value(const RankFile& file, const Shape& shape) {
  if (!file.from.has_tuple_shapes) return torch_size(file.document(), shape);
  return file.document().tuple(integers(shape));
}

Value param_shapes_value(const RankFile& file) {
  if (file.target().stage == 0) return {};
  Document& document = file.document();
  const bool of_groups = !is_before(file.target().release, kParamShapesOfGroups);
  std::vector<Value> all;
  for (const ReshardLayout::Run& run : file.layout().runs()) {
    if (of_groups || all.empty()) all.push_back(ordered_dict(document));
    for (const Param* param : file.layout().params_of(run, 0)) {
      document.set_item(all.back(), document.intern(param->name),
                        shape_value(file, param->weight.shape()));
    }
  }
  return of_groups ? document.list(std::move(all)) : all.front();
}

}  // namespace dsckpt
