#include "inspect/verify/flat_files.h"

#include "base/bytes.h"
#include "checkpoint/optim_states.h"
#include "deepspeed/keys.h"

namespace dsckpt {
namespace {

using pickle::Value;

std::string item(std::string_view name, size_t index) {
  return std::string(name) + "[" + std::to_string(index) + "]";
}

// Returns the key of the optimizer's own state_dict. Stage 3 has another key.
std::string_view states_key(const Fields& wrapper) {
  return wrapper.has(keys::kBaseOptimizerState) ? keys::kBaseOptimizerState
                                                : keys::kOptimizerStateDict;
}

}  // namespace

std::vector<FlatTensor> flat_tensors(const Shard& optim) {
  const Fields wrapper = optimizer_state(optim);
  const bool stage_3 = zero_stage_of(wrapper) == 3;
  const std::string_view key = stage_3 ? keys::kFp32FlatGroups : keys::kSingleFp32Partition;
  const Value all = wrapper[key];
  const auto masters = in_context(wrapper.where(key), [&] { return all.as_sequence(); });
  const auto paddings = wrapper.sequence(keys::kGroupPaddings);
  // BF16_Optimizer writes neither, and keeps the padding.
  const bool kept = stage_3 || (!wrapper.has(keys::kZeroStage) && !wrapper.has(keys::kLossScaler));
  const auto groups = wrapper.get(states_key(wrapper))
                          .value_or(Value())
                          .find_or_none(keys::kParamGroups)
                          .sequence_or_empty();
  std::vector<FlatTensor> tensors;
  for (size_t g = 0; g < masters.size(); ++g) {
    FlatTensor tensor{.member = item(key, g),
                      .masters = masters[g],
                      .padding_kept = kept,
                      .padding_untold = !kept && paddings.empty()};
    in_context(optim.where(tensor.member), [&] {
      const TensorSource flat = flat_masters(optim, masters[g]);
      tensor.dtype = flat.dtype();
      tensor.saved = static_cast<uint64_t>(flat.numel());
    });
    if (!paddings.empty() && !stage_3) {
      in_context(wrapper.where(keys::kGroupPaddings), [&] {
        if (g >= paddings.size() || paddings[g].as_int() < 0) {
          throw CorruptError({}, "does not fit the groups");
        }
        tensor.padding = static_cast<uint64_t>(paddings[g].as_int());
      });
    }
    tensor.muon = !stage_3 && g < groups.size() && groups[g].find_or_none(keys::kUseMuon).is_true();
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::vector<FlatState> flat_states_of(const Shard& optim, size_t index) {
  const Fields wrapper = optimizer_state(optim);
  const std::string_view key = states_key(wrapper);
  const Value states = wrapper.get(key).value_or(Value());
  const auto list = states.sequence_or_empty();  // elastic files
  Value state = index < list.size() ? list[index] : Value();
  std::string name = item(key, index);
  if (const Value of_groups = states.find_or_none("state"); of_groups.is_mapping()) {
    const Value* found = of_groups.as_dict().find(static_cast<int64_t>(index));
    if (found != nullptr) state = *found;
    name = item(std::string(key) + ".state", index);
  }
  std::vector<FlatState> out;
  if (!state.is_mapping()) return out;
  for (const auto& [entry, value] : state.as_dict().items) {
    if (!entry.is(pickle::Kind::string) || !TorchArchive::is_tensor(value)) continue;
    const std::string member = name + "." + std::string(entry.as_string());
    const Shape shape = in_context(
        optim.where(member), [&, &tensor = value] { return optim.archive.info(tensor).shape; });
    if (shape.size() != 1) continue;
    out.push_back({member, std::string(entry.as_string()), value, static_cast<uint64_t>(shape[0])});
  }
  return out;
}

std::vector<FlatSlice> flat_slices(const ModelStates& model, const Shard& optim, size_t group) {
  const NamedShapes& shapes = model.param_shapes.at(group);
  const Fields wrapper = optimizer_state(optim);
  const auto all = wrapper.sequence(keys::kParamAlignmentPaddings);
  const auto paddings =
      group < all.size() ? all[group].sequence_or_empty() : std::span<const Value>();
  const auto padding_of = [&](size_t i) {
    return in_context(wrapper.where(keys::kParamAlignmentPaddings),
                      [&] { return paddings[i].as_int(); });
  };
  if (!paddings.empty() && paddings.size() != shapes.size()) return {};
  std::vector<FlatSlice> slices;
  uint64_t at = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto& [name, shape] = shapes[i];
    const auto count = static_cast<uint64_t>(numel(shape));
    slices.push_back({name, shape, at, count});
    at = checked_add(at, count);
    if (paddings.empty()) continue;
    if (padding_of(i) < 0) return {};
    at = checked_add(at, static_cast<uint64_t>(padding_of(i)));
  }
  return slices;
}

}  // namespace dsckpt
