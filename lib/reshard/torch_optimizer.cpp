#include "reshard/torch_optimizer.h"

#include <array>
#include <string>
#include <utility>

#include "deepspeed/keys.h"
#include "reshard/experts.h"

namespace dsckpt {
using pickle::Document;
using pickle::Kind;
using pickle::Value;
namespace {

using Group = ReshardLayout::Group;
using Run = ReshardLayout::Run;

// A copy of what the optimizer keeps once, with a storage of its own: steps that shared one would
// be counted together.
Value whole(const RankFile& file, const ShardValue& value) {
  if (TorchArchive::is_tensor(value.value)) {
    return file.copy.writer().tensor(value.archive->tensor(value.value));
  }
  return file.copy.of(*value.archive, value.value);
}

std::optional<Value> states(const RankFile& file) {
  const Value dict = file.document().dict();
  const std::vector<Run>& runs = file.layout().runs();
  for (size_t i = 0; i < runs.size(); ++i) {
    const Value state = states_of(file, runs[i]);
    if (state.as_dict().items.empty()) continue;
    file.document().set_item(dict, Document::integer(static_cast<int64_t>(i)), state);
  }
  return dict;
}

// A group's hyper-parameters, with the numbers of its runs.
Value settings_of(const RankFile& file, const Group& group, std::vector<Value> numbers) {
  const ShardValue& settings = group.settings;
  Document& document = file.document();
  const Value params = document.list(std::move(numbers));
  if (settings.archive == nullptr) {
    throw UnsupportedError(file.from.where(), "has no hyper-parameters");
  }
  const auto change = [&](std::string_view key, const Value& value) -> std::optional<Value> {
    if (key == "params") return params;
    const bool is_name = group.experts && key == "name" && value.is(Kind::string);
    if (is_name && value.as_string().starts_with(kExpertGroup)) {
      return document.string(expert_group_name(group.mesh.ep));
    }
    return file.copy.of(*settings.archive, value);
  };
  const Value dict = file.copy.dict_of(*settings.archive, settings.value, change);
  if (!settings.value.find("params")) file.copy.set(dict, "params", params);
  return dict;
}

std::optional<Value> param_groups(const RankFile& file) {
  const ReshardLayout& layout = file.layout();
  std::vector<std::vector<Value>> numbers(layout.groups().size());
  for (size_t i = 0; i < layout.runs().size(); ++i) {
    numbers[layout.runs()[i].group].push_back(Document::integer(static_cast<int64_t>(i)));
  }
  std::vector<Value> groups;
  for (size_t g = 0; g < numbers.size(); ++g) {
    groups.push_back(settings_of(file, layout.groups()[g], std::move(numbers[g])));
  }
  return file.document().list(std::move(groups));
}

constexpr std::array kKeys{
    DictKey{"state", states},
    DictKey{keys::kParamGroups, param_groups},
};

}  // namespace

std::span<const DictKey> torch_optimizer_keys() {
  return kKeys;
}

std::optional<Value> torch_optimizer(const RankFile& file) {
  return dict_of(file, kKeys);
}

Value states_of(const RankFile& file, const Run& run) {
  const ReshardLayout& layout = file.layout();
  const Value dict = file.document().dict();
  const Param* stepped = layout.stepped(run, file.rank);
  if (stepped == nullptr) return dict;
  const Param& first = *stepped;
  if (first.step.archive != nullptr) file.copy.set(dict, "step", whole(file, first.step));
  for (size_t i = 0; i < first.states.size(); ++i) {
    file.copy.set(dict, first.states[i].key,
                  file.copy.writer().tensor(layout.state_of(run, file.rank, i)));
  }
  for (const WholeState& other : first.others) {
    file.copy.set(dict, other.key, whole(file, other.value));
  }
  return dict;
}

}  // namespace dsckpt
