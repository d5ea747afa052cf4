#include "checkpoint/frozen_params.h"

#include <algorithm>
#include <cstdint>

#include "base/text.h"
#include "deepspeed/keys.h"
#include "deepspeed/zero_layout.h"
#include "dsckpt/error.h"

namespace dsckpt {
using pickle::Value;

bool FrozenParams::add(std::string name, TensorSource value) {
  if (!index_.emplace(name, entries_.size()).second) return false;
  entries_.emplace_back(std::move(name), std::move(value));
  return true;
}

const TensorSource* FrozenParams::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

FrozenParams whole_frozen(const ModelStates& model) {
  FrozenParams frozen;
  if (model.frozen_param_fragments) {
    const Where where = model.fields.where(keys::kFrozenParamFragments);
    for (const auto& [name, shape] : model.frozen_param_shapes) {
      // Frozen since the optimizer was made, which still owns it: then its master counts.
      if (model.is_trainable(name)) continue;
      const Where place = {.file = where.file, .member = where.member, .tensor = name};
      TensorSource value = in_context(place, [&, &key = name] {
        return model.shard().archive.tensor(model.frozen_param_fragments->at(key));
      });
      if (value.shape() != shape) {
        throw InconsistentError(place, "has another shape in frozen_param_shapes");
      }
      frozen.add(name, std::move(value));
    }
  }
  for (const auto& [name, value] : model.rest_of_module()) {
    if (frozen.find(name) != nullptr) continue;
    frozen.add(name,
               in_context({.file = model.shard().display, .tensor = name},
                          [&, &stored = value] { return model.shard().archive.tensor(stored); }));
  }
  return frozen;
}

namespace {

// zero_quantized_nontrainable_weights: a rank keeps int8 of a parameter, and DeepSpeed saves these
// without their scales.
bool is_quantized(const ModelStates& model, const std::string& name, DType saved) {
  const auto found = model.by_name.find(name);
  if (found == model.by_name.end() || is_floating_point(saved)) return false;
  return is_floating_point(model.shard().archive.info(found->second).dtype);
}

}  // namespace

FrozenParams cut_frozen(const std::vector<RankModel>& models) {
  FrozenParams frozen;
  const ModelStates& reference = *models.front().states;
  const NamedShapes none;
  for (const auto& [name, shape] :
       reference.frozen_param_fragments ? reference.frozen_param_shapes : none) {
    // Frozen since the optimizer was made, which still owns it: then its master counts.
    if (reference.is_trainable(name)) continue;
    const uint64_t piece = piece_of(static_cast<uint64_t>(numel(shape)), models.size());
    std::vector<TensorSource> pieces;
    for (const RankModel& model : models) {
      Where where = model.shard->where(keys::kFrozenParamFragments);
      where.tensor = name;
      TensorSource fragment = in_context(where, [&, &key = name] {
        const Value fragments = model.states->fields[keys::kFrozenParamFragments];
        return model.shard->archive.tensor(fragments.at(key)).flatten();
      });
      if (static_cast<uint64_t>(fragment.numel()) != piece) {
        throw InconsistentError(where, "has " + counted(fragment.numel(), "element") +
                                           ", a rank's piece is " + std::to_string(piece));
      }
      pieces.push_back(std::move(fragment));
    }
    if (is_quantized(reference, name, pieces.front().dtype())) continue;
    frozen.add(name,
               TensorSource::cat(0, std::move(pieces)).narrow(0, 0, numel(shape)).view(shape));
  }
  const auto readable = std::find_if(models.begin(), models.end(),
                                     [](const RankModel& model) { return !model.shard->lost; });
  if (readable == models.end()) return frozen;
  const ModelStates& states = *readable->states;
  for (const auto& [name, value] : states.rest_of_module()) {
    in_context({.file = readable->shard->display, .tensor = name},
               [&, &key = name, &saved = value] {
                 const TorchArchive& archive = readable->shard->archive;
                 if (frozen.find(key) != nullptr) return;
                 if (states.is_placeholder(archive.info(saved).shape)) return;
                 frozen.add(key, archive.tensor(saved));
               });
  }
  return frozen;
}

}  // namespace dsckpt
