// A run of DeepSpeed that continues another framework's training, where nothing but that
// is at hand: for_deepspeed().

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/made_values.h"
#include "checkpoint/other_values.h"
#include "checkpoint/state_dicts.h"
#include "deepspeed/keys.h"
#include "deepspeed/release.h"
#include "dsckpt/error.h"
#include "format/meta_tensor.h"
#include "pickle/python_objects.h"

namespace dsckpt {
namespace {

using pickle::Document;
using pickle::Value;

// Archives of values of one file, which are told apart by their places, lie behind its end: those
// that are made here at these.
constexpr uint64_t kModelPlace = ~uint64_t{0} - 1;
constexpr uint64_t kWrapperPlace = ~uint64_t{0} - 2;

class ForeignRun {
 public:
  ForeignRun(CheckpointDraft& draft, const Checkpoint& values, const ParamKinds& kinds)
      : draft_(draft), values_(values), kinds_(kinds) {}

  void read() {
    take_params();
    draft_.groups = values_.groups();
    note_groups();
    const DataFile file = first_file();
    Document model;
    model.set_root(model_states(model));
    draft_.model_shards.push_back(
        {.name = {.kind = ShardName::Kind::model_states},
         .path = file.path,
         .display = draft_.inputs[file.id].display(),
         .archive =
             TorchArchive::of_values(draft_.inputs, {file.id, kModelPlace, 0}, std::move(model))});
    if (!has_optimizer()) return;
    Document wrapper;
    wrapper.set_root(wrapper.dict());
    draft_.item_archives.push_back(std::make_unique<TorchArchive>(
        TorchArchive::of_values(draft_.inputs, {file.id, kWrapperPlace, 0}, std::move(wrapper))));
    draft_.wrapper_state = {draft_.item_archives.back().get(), draft_.item_archives.back()->root()};
  }

 private:
  DataFile first_file() const {
    if (!values_.files().data.empty()) return values_.files().data.front();
    const CheckpointFile first = values_.archives().front();
    return {first.path, first.archive->file()};
  }

  bool has_optimizer() const {
    return !draft_.groups.empty() ||
           std::any_of(draft_.params.begin(), draft_.params.end(), [](const Param& param) {
             return !param.states.empty() || param.step.archive != nullptr;
           });
  }

  // Masters and states are fp32: what FSDP trained in 16 bits is widened.
  void take_params() {
    size_t widened = 0;
    for (const Param& from : values_.params()) {
      Param& param = draft_.params.emplace_back(from);
      param.given = true;
      if (param.kind != ParamKind::trainable) {
        const auto kind = kinds_.find(param.name);
        if (kind != kinds_.end()) param.kind = kind->second;
        continue;
      }
      if (size_of(param.weight.dtype()) > size_of(DType::float32)) {
        throw UnsupportedError({.file = values_.tag_folder().string(), .tensor = param.name},
                               "is " + std::string(torch_name(param.weight.dtype())) +
                                   ": DeepSpeed's masters are float32, and it would be rounded");
      }
      if (param.weight.dtype() != DType::float32) ++widened;
      param.weight = param.weight.to(DType::float32);
      for (ParamState& state : param.states) state.value = state.value.to(DType::float32);
    }
    if (widened == 0) return;
    draft_.notes.push_back(counted(widened, "trained parameter") +
                           " of less than 32 bits: the masters get these numbers, upcast");
  }

  void note_groups() const {
    if (draft_.groups.empty()) return;
    draft_.notes.push_back(
        counted(draft_.groups.size(), "parameter group") + " with the parameters in the order of " +
        values_.tag_folder().string() +
        ": the new run has to give its optimizer the same groups in the same order, which "
        "nothing here can check; --like CHECKPOINT takes them from a checkpoint of it");
  }

  // The members that engine.py _save_checkpoint writes, with types and shapes where tensors are:
  // values are those of the parameters.
  Value model_states(Document& document) const {
    const Value dict = document.dict();
    const auto set = [&](std::string_view key, Value value) {
      document.set_item(dict, document.intern(key), value);
    };
    set(keys::kModule, module(document));
    set(keys::kBufferNames, buffer_names(document, draft_.params));
    set(keys::kLrScheduler, schedule(document));
    set_counters(document, dict, steps());
    return dict;
  }

  int64_t steps() const { return values_.facts().global_steps.value_or(0); }

  Value module(Document& document) const {
    const Value dict = ordered_dict(document);
    for (const Param& param : draft_.params) {
      const MetaTensor tensor{.dtype = param.weight.dtype(),
                              .shape = param.weight.shape(),
                              .strides = contiguous_strides(param.weight.shape())};
      document.set_item(dict, document.intern(param.name), make_meta_tensor(document, tensor));
    }
    return dict;
  }

  // The state of both schedules after so many steps. DeepSpeed's (lr_schedules.py) count batches
  // from 0; torch's (lr_scheduler.py) count epochs from 1 and ask for the state of functions.
  Value schedule(Document& document) const {
    const Value dict = document.dict();
    const auto set = [&](std::string_view key, Value value) {
      document.set_item(dict, document.intern(key), value);
    };
    set("last_batch_iteration", Document::integer(steps() - 1));
    set("last_epoch", Document::integer(steps()));
    set("_step_count", Document::integer(steps() + 1));
    set("lr_lambdas", document.list({}));
    return dict;
  }

  CheckpointDraft& draft_;
  const Checkpoint& values_;
  const ParamKinds& kinds_;
};

}  // namespace

Checkpoint for_deepspeed(std::shared_ptr<const Checkpoint> values, const ParamKinds& kinds) {
  if (values->facts().states != StatesTold::yes) throw unnamed_states(values->tag_folder());
  const CheckpointDraft of_values = values->draft();
  CheckpointDraft draft{.inputs = of_values.inputs,
                        .options = {.tag = {}, .optimizer_states = true},
                        .folder = of_values.folder,
                        .facts = of_values.facts,
                        .notes = of_values.notes,
                        .files = {.data = of_values.files.data}};
  draft.facts.run = RunKind::made;
  draft.facts.values = ValuesFrom::foreign;
  draft.facts.has_masters = true;
  draft.facts.ds_version = kNewestKnown;
  draft.facts.tag = "global_step" + std::to_string(draft.facts.global_steps.value_or(0));
  ForeignRun(draft, *values, kinds).read();
  const Shard& model = draft.model_shards.front();
  draft.files.model.push_back({model.path, &model.archive});
  draft.values = std::move(values);
  return Checkpoint(std::move(draft));
}

}  // namespace dsckpt
