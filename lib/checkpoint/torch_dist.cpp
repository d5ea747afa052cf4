// Megatron-Core's torch_dist: a checkpoint of torch.distributed.checkpoint whose tensors are those
// of all tensor- and pipeline-parallel ranks together, with `common.pt` beside it. Layout:
// LAYOUTS.md; source: megatron/core/dist_checkpointing, transformer_block.py sharded_state_dict,
// optimizer/optimizer.py sharded_state_dict.

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/keyed_hash.h"
#include "base/text.h"
#include "checkpoint/dcp_files.h"
#include "checkpoint/layout.h"
#include "checkpoint/state_dicts.h"
#include "dsckpt/error.h"
#include "format/tensors_in.h"
#include "io/content_name.h"

namespace dsckpt {
namespace {

namespace fs = std::filesystem;
using pickle::Kind;
using pickle::Value;

constexpr std::string_view kOptimizerFront = "optimizer.";
constexpr std::string_view kStateFront = "optimizer.state.";
constexpr std::string_view kLayers = "layers";

fs::path folder_of(const CheckpointDraft& draft) {
  return draft.folder.dcp_metadata.front().parent_path();
}

bool probe_torch_dist(CheckpointDraft& draft) {
  return draft.folder.dcp_metadata.size() == 1 && is_stored(folder_of(draft) / "common.pt") &&
         is_stored(folder_of(draft) / "metadata.json");
}

// Masters, by the optimizers that have them.
bool is_master(std::string_view state) {
  return state == "fp32_param" || state == "param";
}

// A key of the optimizer without `chained_N.`, which several optimizers of one model have in front.
std::string_view without_chain(std::string_view key) {
  constexpr std::string_view kChained = "chained_";
  if (!key.starts_with(kChained)) return key;
  const size_t dot = key.find('.');
  if (dot == key.npos) return key;
  const std::string number(key.substr(kChained.size(), dot - kChained.size()));
  return is_digits(number) ? key.substr(dot + 1) : key;
}

// Where the number of a layer belongs in a name: behind "layers.". All layers are one tensor then,
// with a dimension in front that counts them. Models with layers of several kinds have a number.
std::optional<size_t> place_of_number(const std::string& name) {
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    if (std::string_view(name).substr(begin, end - begin) == kLayers && end < name.size()) {
      const size_t next = std::min(name.find('.', end + 1), name.size());
      if (is_digits(name.substr(end + 1, next - end - 1))) return std::nullopt;
      return end + 1;
    }
    begin = end + 1;
  }
  return std::nullopt;
}

class TorchDist {
 public:
  explicit TorchDist(CheckpointDraft& draft)
      : draft_(draft), files_(draft), tensors_(draft, files_) {}

  void read() {
    draft_.facts.mesh.dp = files_.ranks();
    for (const DcpEntry& entry : files_.entries()) {
      if (entry.is_tensor() && !files_.is_left_out(entry)) sort_in(entry);
    }
    if (model_.empty()) {
      throw InconsistentError({.file = draft_.folder.path.string()}, "has no tensors of a model");
    }
    if (!left_out_.empty()) drop_states();
    refuse_unknown_params();
    tensors_.open();
    open_common();
    std::vector<ModelEntry> entries;
    for (const auto& [name, entry] : model_) add_model(name, entry, entries);
    const OptimizerDict optimizer = read_optimizer();
    const bool has_states = !optimizer.groups.empty();
    read_state_dicts(draft_, std::move(entries), has_states ? &optimizer : nullptr);
    if (!is_one_group_) draft_.groups.clear();
    if (steps_) draft_.facts.global_steps = *steps_;
    note();
  }

 private:
  // A parameter's state by its key, or the master.
  using States = std::map<std::string, DcpEntry>;

  void sort_in(const DcpEntry& entry) {
    const std::string_view key = without_chain(entry.name());
    if (!key.starts_with(kOptimizerFront)) {
      model_.emplace_back(entry.name(), entry);
      tensors_.want(entry);
      return;
    }
    const size_t dot = key.find('.', kStateFront.size());
    if (!key.starts_with(kStateFront) || dot == key.npos) {
      left_out_.push_back(entry.name());
      return;
    }
    const std::string state(key.substr(kStateFront.size(), dot - kStateFront.size()));
    const std::string name(key.substr(dot + 1));
    if (!states_[name].emplace(state, entry).second) {
      throw InconsistentError({.file = draft_.folder.path.string(), .tensor = entry.name()},
                              "is in two optimizers");
    }
    if (is_master(state) || draft_.options.optimizer_states) tensors_.want(entry);
  }

  // With a part of the states in flat buckets, the others would pass for all.
  void drop_states() {
    for (auto& [name, states] : states_) {
      std::erase_if(states, [](const auto& state) { return !is_master(state.first); });
    }
    std::erase_if(states_, [](const auto& param) { return param.second.empty(); });
  }

  void refuse_unknown_params() const {
    KeyedMap<std::string_view, const DcpTensor*> known;
    for (const auto& [name, entry] : model_) known.emplace(name, &*entry.value->tensor);
    for (const auto& [name, states] : states_) {
      const auto found = known.find(name);
      for (const auto& [key, entry] : states) {
        const Where where{.file = draft_.folder.path.string(), .tensor = entry.name()};
        if (found == known.end()) {
          throw InconsistentError(where, "belongs to a parameter that the model lacks");
        }
        if (entry.value->tensor->shape == found->second->shape) continue;
        throw UnsupportedError(where, "has shape " + to_text(entry.value->tensor->shape) +
                                          ", its parameter " + to_text(found->second->shape) +
                                          ": it is a rank's flat part");
      }
    }
  }

  void open_common() {
    const fs::path path = folder_of(draft_) / "common.pt";
    const FileId id =
        draft_.inputs.add(stored_path(path).value_or(path), draft_.folder.display_root());
    draft_.module_shards.push_back({.name = {.kind = ShardName::Kind::model_states},
                                    .path = path,
                                    .display = draft_.inputs[id].display(),
                                    .archive = TorchArchive::open(draft_.inputs, id)});
    const Value iteration = common().root().find_or_none("iteration");
    if (iteration.is(Kind::integer)) steps_ = iteration.as_int();
  }

  const TorchArchive& common() const { return draft_.module_shards.front().archive; }

  // The parts of a tensor: each layer, or the whole.
  template <typename F>
  void for_each_part(const std::string& name, const TensorSource& whole, F&& take) {
    const std::optional<size_t> place = place_of_number(name);
    if (!place || whole.shape().empty() || whole.numel() == 0) return take(name, whole);
    const Shape shape(whole.shape().begin() + 1, whole.shape().end());
    for (int64_t i = 0; i < whole.shape().front(); ++i) {
      std::string numbered = name;
      numbered.insert(*place, std::to_string(i) + ".");
      names_size_.add(numbered);
      take(numbered, whole.narrow(0, i, 1).view(shape));
    }
  }

  void add_model(const std::string& name, const DcpEntry& entry, std::vector<ModelEntry>& entries) {
    const DcpEntry* value = &entry;
    const auto states = states_.find(name);
    if (states != states_.end()) {
      for (const auto& [key, state] : states->second) {
        if (is_master(key)) value = &state;
      }
    }
    for_each_part(name, tensors_.whole(*value), [&](std::string part, TensorSource source) {
      entries.push_back({std::move(part), std::move(source)});
    });
  }

  // `optimizer` of common.pt, or those of the optimizers chained in it.
  std::vector<Value> saved_optimizers() const {
    const Value saved = common().root().find_or_none("optimizer");
    if (!saved.is_mapping()) return {};
    if (saved.find("param_groups") || saved.find("optimizer")) return {inner(saved)};
    std::vector<Value> all;
    for (const auto& [key, value] : saved.as_dict().items) {
      if (key.is(Kind::integer) && value.is_mapping()) all.push_back(inner(value));
    }
    return all;
  }

  // A mixed-precision optimizer has torch's below `optimizer`.
  static Value inner(const Value& optimizer) {
    const Value torch = optimizer.find_or_none("optimizer");
    return torch.is_mapping() ? torch : optimizer;
  }

  // Steps are of all parameters together; and which group has which parameters no file tells.
  OptimizerDict read_optimizer() {
    OptimizerDict optimizer;
    if (states_.empty()) return optimizer;
    OptimizerDict::Group group;
    ShardValue step;
    size_t groups = 0;
    for (const Value& saved : saved_optimizers()) {
      const Value common_step = saved.find_or_none("state").find_or_none("common_step");
      if (!common_step.is_none()) step = {&common(), common_step};
      for (const Value& each : saved.find_or_none("param_groups").sequence_or_empty()) {
        if (!each.is_mapping()) continue;
        ++groups;
        group.settings = {&common(), each};
        const Value of_group = each.find_or_none("step");
        if (step.archive == nullptr && !of_group.is_none()) step = {&common(), of_group};
      }
    }
    is_one_group_ = groups == 1;
    if (!is_one_group_) group.settings = {};
    for (const auto& [name, states] : states_) {
      const Shape& shape = states.begin()->second.value->tensor->shape;
      for_each_part(name, TensorSource::zeros(DType::float32, shape),
                    [&](const std::string& part, const TensorSource& source) {
                      group.params.push_back(part);
                      optimizer.states[part] = {.step = step, .shape = source.shape()};
                    });
      if (draft_.options.optimizer_states) add_states(name, states, optimizer);
    }
    optimizer.groups.push_back(std::move(group));
    return optimizer;
  }

  void add_states(const std::string& name, const States& states, OptimizerDict& optimizer) {
    for (const auto& state : states) {
      if (is_master(state.first)) continue;
      for_each_part(name, tensors_.whole(state.second),
                    [&](const std::string& part, const TensorSource& source) {
                      optimizer.states[part].tensors.push_back({state.first, source});
                    });
    }
  }

  void note() {
    if (!left_out_.empty()) {
      draft_.notes.push_back(
          counted(left_out_.size(), "tensor") +
          " of the distributed optimizer's flat buckets are left out, which only the ranks that "
          "saved them can read: " +
          some_of(left_out_) + "; --dist-ckpt-optim-fully-reshardable saves states by parameter");
      draft_.facts.states = StatesTold::no;
    }
    if (draft_.options.optimizer_states && !states_.empty() && !is_one_group_) {
      draft_.notes.emplace_back(
          "the optimizer has several groups, and no file tells which parameters each has");
    }
  }

  CheckpointDraft& draft_;
  DcpFiles files_;
  DcpTensors tensors_;
  std::vector<std::pair<std::string, DcpEntry>> model_;
  std::map<std::string, States> states_;  // by parameter
  std::vector<std::string> left_out_;
  std::optional<int64_t> steps_;
  NamesSize names_size_;
  bool is_one_group_ = false;
};

void read_torch_dist(CheckpointDraft& draft) {
  refuse_foreign_options(draft, "of Megatron's torch_dist");
  TorchDist(draft).read();
}

}  // namespace

const Layout kTorchDist{"torch-dist", probe_torch_dist, read_torch_dist};

}  // namespace dsckpt
