// Checks that the files of a ZeRO checkpoint are from one save, by the steps that they hold.

#include <tbb/parallel_for.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/text.h"
#include "checkpoint/model_states.h"
#include "checkpoint/optim_states.h"
#include "checkpoint/salvage.h"
#include "deepspeed/keys.h"
#include "deepspeed/release.h"
#include "io/far_files.h"

namespace dsckpt {
using pickle::Kind;
using pickle::Value;
namespace {

// One fact of a step, under the name it has in messages.
struct Evidence {
  std::string name;
  Value value;
  std::optional<double> number;  // of a tensor or number

  // base_optimizer_state_step is a setting's copy, which DeepSpeed leaves at 0.
  bool is_step() const { return number && name.ends_with(".step"); }
  bool is_setting() const { return name.ends_with(".param_groups"); }
};

void add_state_evidence(const Shard& shard, const Value& states, const std::string& path,
                        std::vector<Evidence>& out) {
  if (!states.is_mapping()) return;
  if (const auto state = states.find("state"); state && state->is_mapping()) {
    for (const auto& [index, entry] : state->as_dict().items) {
      if (!entry.is_mapping() || !index.is(Kind::integer)) continue;
      if (const auto step = entry.find("step")) {
        out.push_back({path + ".state[" + std::to_string(index.as_int()) + "].step", *step,
                       shard.archive.scalar(*step)});
      }
    }
  }
  if (const auto groups = states.find(keys::kParamGroups)) {
    out.push_back({path + ".param_groups", *groups, std::nullopt});
  }
}

std::vector<Evidence> evidence(const Shard& shard, std::string_view state_key) {
  std::vector<Evidence> out;
  if (shard.name.kind == ShardName::Kind::expert_optim) {  // stage 0
    const Value optimizer = shard.archive.root().find_or_none(keys::kOptimizer);
    const Value inner = optimizer.find_or_none(keys::kOptimizerStateDict);
    add_state_evidence(shard, inner.is_none() ? optimizer : inner, std::string(keys::kOptimizer),
                       out);
    return out;
  }
  const Fields fields = optimizer_state(shard);
  if (const auto scaler = fields.get(keys::kLossScaler)) {
    out.push_back({std::string(keys::kLossScaler), *scaler, std::nullopt});
  }
  if (const auto step = fields.get(keys::kBaseOptimizerStateStep)) {
    out.push_back({std::string(keys::kBaseOptimizerStateStep), *step, shard.archive.scalar(*step)});
  }
  if (const auto states = fields.get(state_key)) {
    const std::string path(state_key);
    if (states->is(Kind::list)) {
      // Elastic files: a list with the state of one flat tensor for each group.
      const auto groups = states->as_sequence();
      for (size_t g = 0; g < groups.size(); ++g) {
        if (!groups[g].is_mapping()) continue;
        if (const auto step = groups[g].find("step")) {
          out.push_back(
              {path + "[" + std::to_string(g) + "].step", *step, shard.archive.scalar(*step)});
        }
      }
    } else {
      add_state_evidence(shard, *states, path, out);
    }
  }
  return out;
}

// Where files are far, each of them is a request: many at once. The fault is reported later.
void look_up_steps(const CheckpointDraft& draft, std::string_view state_key) {
  if (far_requests() == 0) return;
  tbb::parallel_for(size_t{0}, draft.optim_shards.size(), [&](size_t i) {
    if (draft.optim_shards[i].lost) return;
    try {
      evidence(draft.optim_shards[i], state_key);
    } catch (const Error&) {
    }
  });
}

std::string step_text(double step) {
  if (!(std::abs(step) < kMostWhole)) return std::to_string(step);
  return std::to_string(static_cast<int64_t>(step));
}

// nullptr if there is none.
const Evidence* first_step(const std::vector<Evidence>& facts) {
  const auto step =
      std::find_if(facts.begin(), facts.end(), [](const Evidence& fact) { return fact.is_step(); });
  return step == facts.end() ? nullptr : &*step;
}

// Flat tensors of a rank at stage 3; 1 at other stages.
int64_t sub_groups_of(const Shard& optim) {
  const auto flat = optimizer_state(optim).sequence(keys::kFp32FlatGroups);
  return std::max<int64_t>(1, static_cast<int64_t>(flat.size()));
}

// True if sub-groups share one tensor that counts steps: each of them then adds one to it.
// DeepSpeed makes it so where it loads universal checkpoints at stage 3.
bool shares_step(const Shard& optim, const std::vector<Evidence>& facts) {
  std::set<std::string> storages;
  for (const Evidence& fact : facts) {
    if (!fact.is_step() || !TorchArchive::is_tensor(fact.value)) continue;
    if (!storages.insert(optim.archive.info(fact.value).storage_key).second) return true;
  }
  return false;
}

// The step that the optimizer counts at the step of a model-states file: in old releases one of two
// numbers. Doubles, since the file may hold any number.
struct ModelStep {
  double counted;
  double most;

  bool is(double step) const { return step == counted || step == most; }
};

std::optional<ModelStep> step_of_model(const CheckpointDraft& draft, const Shard& model) {
  const Fields fields(model, model.archive.root());
  const auto global = fields.integer_if_any(keys::kGlobalSteps);
  // ZenFlow steps at intervals of its own.
  if (!global || draft.run_config.zenflow) return std::nullopt;
  const double counted =
      static_cast<double>(*global) -
      static_cast<double>(fields.integer_if_any(keys::kSkippedSteps).value_or(0));
  // At stage 0 wrappers of 16 bit step with zero gradients before the training. Files resharded
  // from there keep the number.
  const auto& engine = draft.run_config.engine;
  const double wrapped = !engine || engine->precision != Precision::fp32 ? 1 : 0;
  if (draft.optim_shards.empty()) return ModelStep{counted, counted + wrapped};
  const auto release = release_of(fields.text(keys::kDsVersion));
  const int64_t times =
      is_before(release, kStepOfGroup) ? sub_groups_of(draft.optim_shards.front()) : 1;
  const double at_start = is_before(release, kNoStepAtStart) ? 1 : wrapped;
  return ModelStep{counted, (counted + at_start) * static_cast<double>(times)};
}

// Files of one kind by the steps that they hold.
using FilesOfSteps = std::map<double, std::vector<Shard*>>;

FilesOfSteps optim_files_of_steps(CheckpointDraft& draft, std::string_view state_key) {
  FilesOfSteps files;
  for (Shard& shard : draft.optim_shards) {
    if (shard.lost) continue;
    const std::vector<Evidence> facts = evidence(shard, state_key);
    const Evidence* const step = first_step(facts);
    if (step != nullptr && !std::isnan(*step->number)) files[*step->number].push_back(&shard);
  }
  return files;
}

FilesOfSteps model_files_of_steps(CheckpointDraft& draft) {
  FilesOfSteps files;
  for (Shard& shard : draft.model_shards) {
    if (shard.lost) continue;
    if (const auto step = step_of_model(draft, shard)) files[step->counted].push_back(&shard);
  }
  return files;
}

// "\n  step 4: a.pt, b.pt and 6 more"
std::string lines_of(const FilesOfSteps& files) {
  constexpr size_t kShown = 4;
  std::string text;
  for (const auto& [step, shards] : files) {
    text += "\n  step " + step_text(step) + ": ";
    for (size_t i = 0; i < std::min(shards.size(), kShown); ++i) {
      text += (i == 0 ? "" : ", ") + shards[i]->name.file_name();
    }
    if (shards.size() > kShown) text += " and " + std::to_string(shards.size() - kShown) + " more";
  }
  return text;
}

// The entry of `files` whose step the files of the other kind hold too; else the end. Every mp rank
// must have a file of it.
FilesOfSteps::const_iterator right_files(const CheckpointDraft& draft, const FilesOfSteps& files,
                                         const FilesOfSteps& others) {
  return std::find_if(files.begin(), files.end(), [&](const auto& entry) {
    const bool is_model = entry.second.front()->name.kind != ShardName::Kind::optim_states;
    const bool agrees = std::any_of(others.begin(), others.end(), [&](const auto& other) {
      const auto model = step_of_model(draft, *(is_model ? entry.second : other.second).front());
      return model && model->is(is_model ? other.first : entry.first);
    });
    std::set<uint32_t> left;
    for (const Shard* shard : entry.second) left.insert(shard->name.mp_rank);
    return agrees && left.size() == draft.mp_ranks;
  });
}

// Treats files of other steps as lost.
void lose_other_steps(CheckpointDraft& draft, const FilesOfSteps& files,
                      FilesOfSteps::const_iterator right) {
  std::map<uint32_t, const Shard*> of_mp_rank;
  for (const Shard* shard : right->second) of_mp_rank.emplace(shard->name.mp_rank, shard);
  for (const auto& [step, shards] : files) {
    if (step == right->first) continue;
    for (Shard* shard : shards) {
      *shard = stand_in(
          draft, shard->name, *of_mp_rank.at(shard->name.mp_rank),
          "is of step " + step_text(step) + ", the checkpoint of step " + step_text(right->first));
    }
  }
}

// True if the optimizer's learning rates, which have moved, are those that the schedule in the
// model-states file gave last. Then both were saved at once.
bool has_rates_of(const Shard& model, const std::vector<Evidence>& facts) {
  const auto schedule = Fields(model, model.archive.root()).get(keys::kLrScheduler);
  if (!schedule || !schedule->is_mapping()) return false;
  const auto last = schedule->find("_last_lr");
  const auto groups = std::find_if(facts.begin(), facts.end(),
                                   [](const Evidence& fact) { return fact.is_setting(); });
  if (!last || groups == facts.end()) return false;
  const auto rates = last->sequence_or_empty();
  const auto settings = groups->value.sequence_or_empty();
  if (rates.empty() || rates.size() != settings.size()) return false;
  bool have_moved = false;
  for (size_t i = 0; i < rates.size(); ++i) {
    if (!settings[i].is_mapping()) return false;
    const auto rate = settings[i].find("lr");
    const auto first = settings[i].find("initial_lr");
    if (!rate || !same_plain_data(*rate, rates[i])) return false;
    have_moved = have_moved || (first && !same_plain_data(*rate, *first));
  }
  return have_moved;
}

// Only the steps reveal two mixed saves in fp32 and at stage 3. In other runs `verify` compares the
// weights with their masters too.
void check_step_of_model(CheckpointDraft& draft, const Shard& optim, std::string_view state_key) {
  const auto of_mp_rank =
      std::find_if(draft.model_shards.begin(), draft.model_shards.end(),
                   [&](const Shard& shard) { return shard.name.mp_rank == optim.name.mp_rank; });
  const Shard& model = *of_mp_rank;
  const auto expected = step_of_model(draft, model);
  if (!expected) return;
  const std::vector<Evidence> facts = evidence(optim, state_key);
  // A parameter that was not always used has fewer steps.
  const Evidence* other = nullptr;
  for (const Evidence& fact : facts) {
    if (!fact.is_step() || std::isnan(*fact.number)) continue;
    if (other == nullptr || *fact.number > *other->number) other = &fact;
  }
  if (other == nullptr || expected->is(*other->number)) return;
  const bool is_later = *other->number > expected->counted;
  const bool may_run_ahead = is_later && shares_step(optim, facts);
  const bool told = !is_later && has_rates_of(model, facts);
  const auto& engine = draft.run_config.engine;
  const InconsistentError error(optim.where(other->name),
                                "is " + step_text(*other->number) + ", but " + model.display +
                                    " is of step " + step_text(expected->counted) +
                                    ": they are not of one save" +
                                    (is_later ? "" : ", or the optimizer was started afresh"));
  if (engine && engine->precision == Precision::fp32 && !may_run_ahead && !told) {
    if (!draft.options.allow_missing || draft.optim_shards.empty()) throw error;
    for (Shard& shard : draft.model_shards) {
      if (shard.lost) continue;
      shard = stand_in(draft, shard.name, shard,
                       "is of step " + step_text(expected->counted) +
                           ", the optimizer's files of step " + step_text(*other->number));
    }
  } else if (!may_run_ahead && !told) {
    draft.doubts.push_back(error);
  }
  draft.notes.push_back(model.display + " is of step " + step_text(expected->counted) + ", but " +
                        optim.display + " has " + other->name + " = " + step_text(*other->number) +
                        (is_later
                             ? ": they are not of one save"
                             : ": if the optimizer was not started afresh, they are not of one "
                               "save"));
}

// How a rank's file differs from that of another one.
struct Difference {
  Where where;
  std::string text;
};

// The first one. Settings that may differ are noted.
std::optional<Difference> first_difference(CheckpointDraft& draft, std::string_view state_key) {
  const Shard* reference = nullptr;
  std::vector<Evidence> expected;
  bool has_steps = false;
  for (const Shard& shard : draft.optim_shards) {
    if (shard.lost) continue;
    std::vector<Evidence> found = evidence(shard, state_key);
    const auto differs = [&](const std::string& name, const std::string& how) {
      return Difference{shard.where(name), how + " in " + reference->display +
                                               ": the ranks were not saved at the same step"};
    };
    if (reference == nullptr || shard.name.mp_rank != reference->name.mp_rank) {
      // Ranks of other stages and slices have other groups, but the same steps.
      const Evidence* const step = first_step(found);
      const Evidence* const before = first_step(expected);
      if (step != nullptr && before != nullptr && step->number != before->number) {
        return differs(step->name, "differs from that");
      }
      has_steps = step != nullptr;
      reference = &shard;
      expected = std::move(found);
      continue;
    }
    int left = kMaxPlainValues;
    for (size_t i = 0; i < std::max(expected.size(), found.size()); ++i) {
      if (i >= expected.size()) return differs(found[i].name, "is not");
      if (i >= found.size()) return differs(expected[i].name, "is missing here but is");
      if (found[i].name != expected[i].name) return differs(found[i].name, "is called otherwise");
      if (found[i].number == expected[i].number &&
          same_plain_data(found[i].value, expected[i].value, left)) {
        continue;
      }
      if (!has_steps || !found[i].is_setting()) return differs(found[i].name, "differs from that");
      draft.notes.push_back(shard.display + ": " + found[i].name + " differs from that in " +
                            reference->display + ", at the same step");
    }
  }
  return std::nullopt;
}

// The first difference of two model-states files in what one save has in all of them.
std::optional<Difference> first_model_difference(const CheckpointDraft& draft) {
  const Shard* reference = nullptr;
  for (const Shard& shard : draft.model_shards) {
    if (shard.lost) continue;
    if (reference == nullptr) reference = &shard;
    const std::string key = other_save_key(shard.archive.root(), reference->archive.root());
    if (key.empty()) continue;
    return Difference{shard.where(key), "differs from that in " + reference->display +
                                            ": the ranks were not saved at the same step"};
  }
  return std::nullopt;
}

// Leaves out the files of other steps if it may be; else throws.
void mend(CheckpointDraft& draft, const Difference& difference, const FilesOfSteps& files,
          const FilesOfSteps& others) {
  if (files.size() < 2) throw InconsistentError(difference.where, difference.text);
  const auto right = right_files(draft, files, others);
  if (draft.options.allow_missing && right != files.end()) {
    return lose_other_steps(draft, files, right);
  }
  InconsistentError error(difference.where, difference.text + lines_of(files) + lines_of(others));
  if (right != files.end()) throw error;
  throw std::move(error).with_hint(cure_of(draft.folder, std::nullopt, false));
}

}  // namespace

void check_steps(CheckpointDraft& draft, std::string_view state_key) {
  look_up_steps(draft, state_key);
  while (const auto difference = first_model_difference(draft)) {
    mend(draft, *difference, model_files_of_steps(draft), optim_files_of_steps(draft, state_key));
  }
  const size_t notes = draft.notes.size();
  while (const auto difference = first_difference(draft, state_key)) {
    mend(draft, *difference, optim_files_of_steps(draft, state_key), model_files_of_steps(draft));
    draft.notes.resize(notes);
  }
  if (!draft.optim_shards.empty()) {
    return check_step_of_model(draft, draft.optim_shards.front(), state_key);
  }
  for (const Shard& shard : draft.module_shards) {
    if (shard.name.kind == ShardName::Kind::expert_optim) check_step_of_model(draft, shard, {});
  }
}

}  // namespace dsckpt
