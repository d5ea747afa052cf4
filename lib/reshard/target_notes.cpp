#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"
#include "base/text.h"
#include "deepspeed/ds_config.h"
#include "reshard/choice.h"

namespace dsckpt {
namespace {

using Note = std::optional<std::string>;

Note note_if(bool applies, const char* text) {
  return applies ? Note(text) : std::nullopt;
}

Note not_understood(const RunFacts& facts) {
  if (facts.config_error.empty()) return std::nullopt;
  return "the checkpoint's ds_config is not understood (" + facts.config_error +
         "); the facts in the files are used instead";
}

Note config_of_source(const Choice& choice) {
  return not_understood(choice.source);
}

Note config_of_like(const Choice& choice) {
  if (choice.like == nullptr || choice.options.ds_config) return std::nullopt;
  return not_understood(*choice.like);
}

Note settings_of_like(const Choice& choice) {
  if (choice.like == nullptr) return std::nullopt;
  const auto& groups = choice.like->groups;
  const bool kept = std::all_of(groups.begin(), groups.end(), [&](const RunGroup& group) {
    return choice.own_group(group) != nullptr;
  });
  if (kept) return std::nullopt;
  return "hyper-parameters are those of " + choice.like->folder +
         " for the groups that the checkpoint does not have";
}

Note other_precision(const Choice& choice) {
  if (choice.target.precision == choice.source.precision) return std::nullopt;
  return "the precision changes from " + std::string(to_string(choice.source.precision)) + " to " +
         std::string(to_string(choice.target.precision)) +
         ": the parameters are rounded from the masters, and the loss scale starts anew";
}

// torch's own optimizer has what it was given, DeepSpeed's wrappers only what is trained.
Note plain_optimizer(const Choice& choice) {
  const auto params = choice.source.params.all();
  return note_if(
      choice.target.wrapper == EngineWrapper::plain && choice.source.checkpoint.zero_stage != 0 &&
          std::any_of(params.begin(), params.end(),
                      [](const Param& param) { return param.kind == ParamKind::frozen; }),
      "stage 0 in fp32 counts every parameter that the optimizer is given: give it only "
      "those that are trained");
}

Note round_robin_unknown(const Choice& choice) {
  return note_if(choice.target.wrapper == EngineWrapper::zero12 && !choice.target.round_robin &&
                     choice.layout_is_in_files() && !choice.engine,
                 "no ds_config sets round_robin_gradients: it is taken to be off");
}

Note loads_universal(const Choice& choice) {
  return note_if(choice.target.engine.load_universal,
                 "checkpoint.load_universal is set: DeepSpeed would look for a universal "
                 "checkpoint; turn it off in the new run");
}

Note other_writer(const Choice& choice) {
  return note_if(choice.target.engine.checkpoint_writer,
                 "with checkpoint.writer set DeepSpeed does not load its own optimizer files; turn "
                 "it off to resume");
}

Note uneven_hpz(const Choice& choice) {
  if (!choice.engine) return std::nullopt;
  const auto zero = choice.config->find("zero_optimization");
  if (zero == choice.config->end() || !zero->is_object()) return std::nullopt;
  const auto found = zero->find("zero_hpz_partition_size");
  if (found == zero->end() || !found->is_number_integer()) return std::nullopt;
  const auto size = found->get<int64_t>();
  if (size <= 1 || choice.target.dp % size == 0) return std::nullopt;
  return "zero_hpz_partition_size is " + std::to_string(size) + ", which does not divide " +
         counted(choice.target.dp, "rank") + "; change it in the new run";
}

// engine.py load_checkpoint.
Note nvme_optimizer(const Choice& choice) {
  if (choice.target.engine.offload_optimizer != OffloadDevice::nvme) return std::nullopt;
  return choice.is_other_run()
             ? "with offload_optimizer.device nvme DeepSpeed does not read the optimizer's files: "
               "resume with cpu or none"
             : "offload_optimizer.device is cpu in the new files, nvme in the checkpoint: with "
               "nvme DeepSpeed does not read the optimizer's files, so resume with cpu or none";
}

// "bf16.enabled: true" for each "auto" of `given` that `filled` has a value for; of others the key.
void list_autos(const nlohmann::ordered_json& given, const nlohmann::ordered_json& filled,
                const std::string& path, std::vector<std::string>& known,
                std::vector<std::string>& unknown) {
  for (const auto& [key, value] : given.items()) {
    const auto now = filled.find(key);
    if (now == filled.end()) continue;
    const std::string name = path + key;
    if (is_auto(value)) {
      is_auto(*now) ? unknown.push_back(name)
                    : known.push_back(name + ": " + dump(nlohmann::json(*now)));
    } else if (value.is_object() && now->is_object()) {
      list_autos(value, *now, name + ".", known, unknown);
    }
  }
}

Note autos(const Choice& choice) {
  if (!choice.options.ds_config || !choice.config) return std::nullopt;
  std::vector<std::string> known;
  std::vector<std::string> unknown;
  list_autos(*choice.options.ds_config, *choice.config, "", known, unknown);
  if (known.empty() && unknown.empty()) return std::nullopt;
  std::string text = "\"auto\" in the configuration";
  if (!known.empty()) text += " is what the run had (" + some_of(known) + ")";
  if (!unknown.empty()) {
    text += (known.empty() ? " is" : ", and") + (" DeepSpeed's default (" + some_of(unknown)) + ")";
  }
  return text;
}

}  // namespace

std::vector<std::string> notes_of(const Choice& choice) {
  std::vector<std::string> notes;
  for (const auto note :
       {config_of_source, config_of_like, autos, settings_of_like, other_precision, plain_optimizer,
        round_robin_unknown, loads_universal, other_writer, uneven_hpz, nvme_optimizer}) {
    if (Note text = note(choice)) notes.push_back(std::move(*text));
  }
  return notes;
}

}  // namespace dsckpt
