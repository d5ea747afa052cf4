#include "universal/start.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/keyed_hash.h"
#include "checkpoint/made_values.h"
#include "deepspeed/keys.h"
#include "deepspeed/release.h"
#include "deepspeed/shard_name.h"
#include "format/torch_archive.h"
#include "pickle/python_objects.h"

namespace dsckpt {
using pickle::Document;
using pickle::Value;
namespace {

Value initial_step(TorchArchiveWriter& writer, InitialStates::Step step) {
  if (step != InitialStates::Step::tensor) return Document::integer(0);
  return writer.tensor(TensorSource::zeros(DType::float32, {}));
}

// Returns the step of the first trained parameter, or a step of 0.
Value steps_made(TorchArchiveWriter& writer, const Checkpoint& checkpoint,
                 InitialStates::Step step) {
  for (const Param& param : checkpoint.params()) {
    if (!is_trained(param) || param.step.archive == nullptr) continue;
    return writer.import(*param.step.archive, param.step.value);
  }
  return initial_step(writer, step);
}

// An archive under construction, whose root is a dict.
class DictFile {
 public:
  Document& document() { return writer_.document(); }
  TorchArchiveWriter& writer() { return writer_; }
  const Value& root() const { return root_; }
  void set(std::string_view key, Value value) { set(root_, key, value); }
  void set(const Value& dict, std::string_view key, Value value) {
    document().set_item(dict, document().intern(key), value);
  }
  void lay_out(PlanBuilder& plan, std::string path) && {
    document().set_root(root_);
    std::move(writer_).lay_out(plan, std::move(path));
  }

 private:
  TorchArchiveWriter writer_;
  Value root_ = writer_.document().dict();
};

// Returns a parameter group without hyper-parameters.
Value bare_group(DictFile& file, std::vector<Value> numbers) {
  const Value group = file.document().dict();
  file.set(group, "params", file.document().list(std::move(numbers)));
  return group;
}

// The loader of stages 1 and 2 reads as many groups as this file lists. No engine has more groups
// than parameters.
void lay_out_optimizer_state(PlanBuilder& plan, const Checkpoint& weights,
                             InitialStates::Step step) {
  const auto& params = weights.params();
  const auto count = std::count_if(params.begin(), params.end(), is_trained);
  DictFile file;
  Document& document = file.document();
  file.set(keys::kZeroStage, Document::integer(1));
  file.set(keys::kDsVersion, document.string(kNewestKnown));
  std::vector<Value> groups;
  for (int64_t g = 0; g < count; ++g) groups.push_back(bare_group(file, {Document::integer(g)}));
  file.set(keys::kParamGroups, document.list(std::move(groups)));

  // Stage 3 reads these.
  const Value first = document.dict();
  file.set(first, "step", steps_made(file.writer(), weights, step));
  const Value states = document.dict();
  document.set_item(states, Document::integer(0), first);
  const Value optimizer = document.dict();
  file.set(optimizer, "state", states);
  file.set(optimizer, keys::kParamGroups, document.list({bare_group(file, {})}));
  file.set(keys::kOptimizerStateDict, optimizer);
  std::move(file).lay_out(plan, "zero/optimizer_state.pt");
}

class ModelFile {
 public:
  ModelFile(const Checkpoint& weights, bool with_tensors)
      : weights_(weights), with_tensors_(with_tensors) {}

  void lay_out(PlanBuilder& plan, const ShardName& name) && {
    Document& document = file_.document();
    file_.set(keys::kModule, module());
    file_.set(keys::kBufferNames, buffer_names(document, weights_.params()));
    file_.set(keys::kOptimizer, {});
    file_.set(keys::kParamShapes, document.list({shapes(is_trained)}));
    file_.set(keys::kFrozenParamShapes, shapes(is_frozen));
    file_.set(keys::kSharedParams, shared_params());
    file_.set(keys::kFrozenParamFragments, {});
    file_.set(keys::kLrScheduler, first_lr_scheduler(document));
    set_counters(document, file_.root(), weights_.facts().global_steps.value_or(0));
    std::move(file_).lay_out(plan, name.file_name());
  }

 private:
  static bool is_frozen(const Param& param) {
    return param.kind == ParamKind::frozen && param.alias_of.empty();
  }

  // Tied names are views of one storage.
  Value module() {
    const Value dict = ordered_dict(file_.document());
    if (!with_tensors_) return dict;
    KeyedMap<std::string, TorchArchiveWriter::StorageId> storages;
    for (const Param& param : weights_.params()) {
      const std::string& owner = param.alias_of.empty() ? param.name : param.alias_of;
      const auto [found, is_new] = storages.try_emplace(owner, 0);
      if (is_new) found->second = file_.writer().storage(param.weight);
      file_.set(dict, param.name, file_.writer().tensor(found->second, param.weight.shape()));
    }
    return dict;
  }

  Value shapes(bool (*is_wanted)(const Param&)) {
    const Value dict = ordered_dict(file_.document());
    for (const Param& param : weights_.params()) {
      if (!is_wanted(param)) continue;
      file_.set(dict, param.name, torch_size(file_.document(), param.weight.shape()));
    }
    return dict;
  }

  Value shared_params() {
    const Value dict = file_.document().dict();
    for (const Param& param : weights_.params()) {
      if (param.alias_of.empty() || param.kind == ParamKind::buffer) continue;
      file_.set(dict, param.name, file_.document().string(param.alias_of));
    }
    return dict;
  }

  const Checkpoint& weights_;
  bool with_tensors_;
  DictFile file_;
};

}  // namespace

namespace {

// The states of an optimizer that has not made a step yet. Its hyper-parameters show whether it is
// torch's or DeepSpeed's Adam, or another optimizer without known states.
InitialStates states_by_settings(const Checkpoint& like) {
  const InitialStates none{.keys = {}, .step = InitialStates::Step::none};
  if (like.groups().empty()) return none;
  const Value& settings = like.groups().front().settings.value;
  const auto has = [&](std::string_view key) { return !settings.find_or_none(key).is_none(); };
  if (!has("betas") || !has("eps") || has("max_coeff")) return none;
  InitialStates states;
  if (has("bias_correction")) {
    states.step = InitialStates::Step::number;
  } else if (!has("amsgrad")) {
    return none;
  } else if (settings.find_or_none("amsgrad").is_true()) {
    states.keys.emplace_back("max_exp_avg_sq");
  }
  return states;
}

}  // namespace

InitialStates initial_states_like(const Checkpoint& like) {
  constexpr std::array<std::string_view, 3> kAdam{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  constexpr InitialStates::Step kNone = InitialStates::Step::none;
  const auto& params = like.params();
  const auto found = std::find_if(params.begin(), params.end(), [](const Param& param) {
    return is_trained(param) && !param.states.empty();
  });
  if (found == params.end()) return states_by_settings(like);
  if (!found->others.empty()) return {.keys = {}, .step = kNone};
  InitialStates states{.keys = {}, .step = kNone};
  for (const ParamState& state : found->states) states.keys.push_back(state.key);
  const bool is_adam =
      states.keys.size() >= 2 &&
      std::equal(states.keys.begin(), states.keys.end(), kAdam.begin(),
                 kAdam.begin() + std::min<std::ptrdiff_t>(std::ssize(states.keys), 3));
  if (!is_adam || found->step.archive == nullptr) return {.keys = {}, .step = kNone};
  states.step = TorchArchive::is_tensor(found->step.value) ? InitialStates::Step::tensor
                                                           : InitialStates::Step::number;
  return states;
}

void lay_out_initial_step(PlanBuilder& plan, const std::string& param, InitialStates::Step step) {
  if (step == InitialStates::Step::none) return;
  TorchArchiveWriter writer;
  writer.document().set_root(initial_step(writer, step));
  std::move(writer).lay_out(plan, "zero/" + param + "/step.pt");
}

void lay_out_start(PlanBuilder& plan, const Checkpoint& weights, InitialStates::Step step) {
  lay_out_optimizer_state(plan, weights, step);
  ModelFile(weights, true).lay_out(plan, {.kind = ShardName::Kind::model_states});
  ModelFile(weights, false).lay_out(plan, {.kind = ShardName::Kind::zero_model_states});
}

}  // namespace dsckpt
