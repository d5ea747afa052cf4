#include "reshard/model_file.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "deepspeed/keys.h"
#include "pickle/python_objects.h"
#include "reshard/model_values.h"
#include "reshard/state_dict_keys.h"

namespace dsckpt {
using pickle::Document;
using pickle::Value;
namespace {

// At stage 0 the optimizer's state; under ZeRO None, unless a client_state had the key.
Value optimizer_value(ModelFile& file, const Value& saved) {
  const ShardSource& from = file.from;
  if (file.target().stage != 0) {
    return from.offer.optimizer_is_programs ? file.copy.of(saved) : Value();
  }
  if (!file.has_optimizer) return {};
  if (from.offer.optimizer_as_it_is) {
    return file.copy.of(*from.wrapper.archive, from.wrapper.value);
  }
  return wrapper_state_dict(file);
}

Value dp_world_size(ModelFile& file, const Value&) {
  return Document::integer(file.target().dp);
}

Value ds_config(ModelFile& file, const Value&) {
  return *ds_config_value(file);
}

Value ds_version(ModelFile& file, const Value& saved) {
  return file.target().ds_version.empty() ? file.copy.of(saved)
                                          : file.document().string(file.target().ds_version);
}

// It repeats where the experts are.
Value universal_info(ModelFile& file, const Value& saved) {
  if (!saved.is_mapping() || !saved.find(keys::kAutoEpLayers)) {
    return grid_universal_info(file, saved);
  }
  return file.copy.dict_of(saved, [&](std::string_view key, const Value& value) {
    return std::optional(key == keys::kAutoEpLayers ? autoep_layers(file, value)
                                                    : file.copy.of(value));
  });
}

struct ModelKey {
  std::string_view key;
  bool always;  // also where the checkpoint's file does not have it
  Value (*make)(ModelFile& file, const Value& saved);
  Release since = {};  // the first release that has it
};

// The members that are made anew.
constexpr std::array kMade{
    ModelKey{keys::kModule, false, module_value},
    ModelKey{keys::kBufferNames, false, names_of_buffers},
    ModelKey{keys::kOptimizer, true, optimizer_value},
    ModelKey{keys::kParamShapes, true, param_shapes, kParamShapesOfModel},
    ModelKey{keys::kFrozenParamShapes, true, frozen_param_shapes, kFrozenSaved},
    ModelKey{keys::kSharedParams, true, shared_params, kSharedSaved},
    ModelKey{keys::kFrozenParamFragments, true, frozen_param_fragments, kFrozenSaved},
    ModelKey{keys::kDpWorldSize, true, dp_world_size},
    ModelKey{keys::kDsConfig, true, ds_config},
    ModelKey{keys::kDsVersion, false, ds_version},
    ModelKey{keys::kAutoEpLayers, false, autoep_layers},
    ModelKey{keys::kAutoEpLayersLegacy, false, autoep_layers},
    ModelKey{keys::kUniversalCheckpointInfo, false, universal_info},
    ModelKey{keys::kMpWorldSize, false, mp_world_size},
    ModelKey{keys::kCheckpointParallelDimensions, false, parallel_dimensions},
    ModelKey{keys::kArguments, false, grid_arguments},
};

Value zero(ModelFile&, const Value&) {
  return Document::integer(0);
}

Value none(ModelFile&, const Value&) {
  return {};
}

Value copied(ModelFile& file, const Value& saved) {
  return file.copy.of(saved);
}

Value new_lr_scheduler(ModelFile& file, const Value& saved) {
  return saved.is_none() ? Value() : first_lr_scheduler(file.document());
}

// The rest that a run from weights begins with: facts of its model, not of the progress of another
// run of it. The rest is of DeepSpeed's schedules and of the training program.
constexpr std::array kAtStart{
    ModelKey{keys::kGlobalSteps, false, zero},
    ModelKey{keys::kSkippedSteps, false, zero},
    ModelKey{keys::kGlobalSamples, false, zero},
    ModelKey{keys::kDataSampler, false, none},
    ModelKey{keys::kRandomLtd, false, none},
    ModelKey{keys::kLrScheduler, false, new_lr_scheduler},
    ModelKey{keys::kBufferNames, false, names_of_buffers},
    ModelKey{keys::kSparseTensorNames, false, copied},
    ModelKey{keys::kMpWorldSize, false, copied},
    ModelKey{keys::kDsVersion, false, copied},
    ModelKey{keys::kUniversalCheckpointInfo, false, universal_info},
    ModelKey{keys::kCheckpointParallelDimensions, false, copied},
};

const ModelKey* row_of(std::span<const ModelKey> table, std::string_view key) {
  const auto row = std::find_if(table.begin(), table.end(),
                                [&](const ModelKey& each) { return each.key == key; });
  return row == table.end() ? nullptr : &*row;
}

// How many steps the given values have seen: the optimizer's, and those that the run skipped.
std::optional<int64_t> given_steps(const ModelFile& file) {
  const CheckpointFacts& facts = file.from.checkpoint.facts();
  if (!facts.has_given_states() || !facts.global_steps) return std::nullopt;
  const CheckpointFile& model = model_file_for(file.from, file.rank);
  const Value skipped = model.archive->root().find_or_none(keys::kSkippedSteps);
  return *facts.global_steps + (skipped.is(pickle::Kind::integer) ? skipped.as_int() : 0);
}

// nullopt for entries that are left out.
std::optional<Value> value_of(ModelFile& file, std::string_view key, const Value& saved) {
  if (key == keys::kGlobalSteps) {
    if (const auto steps = given_steps(file)) return Document::integer(*steps);
  }
  if (const ModelKey* row = row_of(kMade, key)) {
    if (is_before(file.target().release, row->since)) return std::nullopt;
    return row->make(file, saved);
  }
  if (!file.from.offer.starts) return file.copy.of(saved);
  const ModelKey* row = row_of(kAtStart, key);
  return row != nullptr ? std::optional(row->make(file, saved)) : std::nullopt;
}

}  // namespace

const CheckpointFile& model_file_for(const ShardSource& from, uint32_t rank) {
  const auto& files = from.checkpoint.files().model;
  return files[from.target.stage == 3 && rank < files.size() ? rank : 0];
}

TorchArchiveWriter::Written write_model_file(const ShardSource& from, uint32_t rank,
                                             std::span<const ModuleEntry> more, bool optimizer) {
  const TorchArchive& archive = *model_file_for(from, rank).archive;
  ArchiveCopy copy(archive);
  ModelFile file{{from, copy, rank}, more, optimizer};
  const Value root = archive.root();
  const Value dict = copy.dict_of(
      root, [&](std::string_view key, const Value& saved) { return value_of(file, key, saved); });
  for (const ModelKey& row : kMade) {
    if (is_before(from.target.release, row.since)) continue;
    if (row.always && !root.find(row.key)) copy.set(dict, row.key, row.make(file, {}));
  }
  return copy.write(dict);
}

bool is_written_at_start(std::string_view key) {
  const ModelKey* made = row_of(kMade, key);
  return key == keys::kModule || (made != nullptr && made->always) ||
         row_of(kAtStart, key) != nullptr;
}

}  // namespace dsckpt
