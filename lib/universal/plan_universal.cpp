#include "universal/plan_universal.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/kernels.h"
#include "deepspeed/keys.h"
#include "output/universal_dir.h"
#include "universal/metadata.h"

namespace dsckpt {
namespace fs = std::filesystem;
using pickle::Kind;
using pickle::Value;
namespace {

constexpr const char* kSharedStep =
    "DeepSpeed's stage 3 loads one step count for all sub-groups, and torch's own Adam then counts "
    "it once for each; use one parameter group and a sub_group_size above a rank's elements, "
    "DeepSpeed's Adam, or reshard";

// "'a', 'b' and 3 more"
std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kShown = 4;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += (i == 0 ? "'" : ", '") + names[i] + "'";
  }
  if (names.size() > kShown) text += " and " + std::to_string(names.size() - kShown) + " more";
  return text;
}

class Planner {
 public:
  Planner(InputFiles& inputs, const Checkpoint& checkpoint)
      : inputs_(inputs),
        checkpoint_(checkpoint),
        starts_(checkpoint.facts().from_weights),
        stage_(starts_ ? 0 : checkpoint.facts().zero_stage),
        // Plain stage 3 has vectors without shapes; where the loader has to cut slices out, it
        // needs shapes.
        flat_(stage_ == 3 && checkpoint.facts().mesh.tp == 1) {}

  UniversalPlan plan(const UniversalOptions& options) {
    initial_ = options.initial;
    check_patterns(options);
    if (!checkpoint_.facts().states_assigned) throw unassigned_states(checkpoint_);
    for (const Param& param : checkpoint_.params()) {
      if (is_trained(param)) {
        add_trained(param);
      } else if (stage_ != 3) {
        add_untrained(param);
      }
    }
    if (starts_) {
      lay_out_start(plan_, checkpoint_, initial_.step);
      add_start_notes();
    } else {
      lay_out_optimizer_state(plan_, checkpoint_);
      add_model_files();
      add_notes();
    }
    result_.plan = plan_.finish();
    result_.plan.validate(planned_inputs(inputs_));
    return std::move(result_);
  }

 private:
  // All records of these files count, also those nothing is made of: they are copied.
  void add_model_files() {
    result_.model_records = records_of(checkpoint_.model_files(), true);
    std::span<const InputRecord> rest = result_.model_records;
    for (const CheckpointFile& file : checkpoint_.model_files()) {
      size_t count = 0;
      while (count < rest.size() && rest[count].extent.file == file.archive->file()) ++count;
      lay_out_model_states(plan_, inputs_, checkpoint_, file, rest.first(count));
      rest = rest.subspan(count);
    }
  }

  static bool is_trained(const Param& param) {
    return param.kind == ParamKind::trainable && param.alias_of.empty();
  }

  void note(std::string text) { result_.notes.push_back(std::move(text)); }

  void check_patterns(const UniversalOptions& options) {
    const std::vector<std::string>& unused = checkpoint_.unused_patterns();
    if (unused.empty()) return;
    if (options.strict) {
      throw std::move(UsageError("patterns of universal_checkpoint_info that fit no parameter: " +
                                 some_of(unused)))
          .with_hint("--no_strict makes this a note");
    }
    note("patterns of universal_checkpoint_info that fit no parameter: " + some_of(unused));
  }

  static Shape saved_shape(const Param& param, bool flat) {
    Shape shape = param.weight.shape();
    if (flat) return {param.weight.numel()};
    if (shape.empty()) return {1};
    if (param.form.vocab_rows) shape[0] = std::min(shape[0], *param.form.vocab_rows);
    return shape;
  }

  void add_trained(const Param& param) {
    const bool flat = flat_ && !param.form.ep_num_experts;
    UniversalPlan::Entry entry{param.name, saved_shape(param, flat), {}};
    const auto add = [&](const std::string& key, const TensorSource& value, bool requires_grad) {
      UniversalState state{param.name, key, value, requires_grad};
      // The loader cuts along the first dimension even what it does not have to cut.
      if (!flat && value.shape().empty()) state.value = value.view({1});
      in_context({.tensor = param.name}, [&] {
        if (flat) {
          lay_out_flat_universal_state(plan_, state);
        } else {
          lay_out_universal_state(plan_, state, param.form);
        }
      });
      entry.files.push_back(key);
    };
    if (starts_) {
      add("fp32", param.weight.to(DType::float32), true);
      const TensorSource zeros = TensorSource::zeros(DType::float32, param.weight.shape());
      for (const std::string& key : initial_.keys) add(key, zeros, false);
      lay_out_initial_step(plan_, param.name, initial_.step);
      if (initial_.step != InitialStates::Step::none) entry.files.push_back("step");
      result_.entries.push_back(std::move(entry));
      return;
    }
    add("fp32", param.weight, param.requires_grad);
    for (const ParamState& state : param.states) add(state.key, state.value, false);
    if (stage_ != 3 && param.step.archive != nullptr) {
      lay_out_universal_step(plan_, param.name, *param.step.archive, param.step.value);
      entry.files.push_back("step");
    }
    result_.entries.push_back(std::move(entry));
  }

  // Frozen parameters, buffers and tied names: in fp32, as DeepSpeed writes them, who would drop
  // the imaginary part of complex ones. The loader does not read them, but tools do.
  void add_untrained(const Param& param) {
    TensorSource value = param.weight;
    if (can_convert(value.dtype(), DType::float32)) {
      value = value.to(DType::float32);
    } else {
      note("'" + param.name + "' stays " + std::string(torch_name(value.dtype())));
    }
    UniversalForm form;
    form.vocab_rows = param.form.vocab_rows;
    in_context({.tensor = param.name}, [&] {
      lay_out_universal_state(plan_, {param.name, "fp32", std::move(value), false}, form);
    });
    result_.entries.push_back({param.name, param.weight.shape(), {"fp32"}});
  }

  void add_notes() {
    const std::vector<std::string>& found = checkpoint_.notes();
    result_.notes.insert(result_.notes.begin(), found.begin(), found.end());
    if (stage_ != 3 && !checkpoint_.facts().has_universal_info) {
      note("there is no universal_checkpoint_info; none is needed, since no parameter is cut");
    }
    note_not_restored();
    if (stage_ != 3 && has_round_robin()) {
      note(
          "where round_robin_gradients is set, DeepSpeed's loader puts parameters into each "
          "other's places: turn it off in the new run");
    }
    if (is_elastic()) {
      note("the checkpoint is elastic and has no hyper-parameters: those of the new run count");
    }
    add_note_on_nvme();
    add_notes_on_whole_states();
    if (stage_ == 3) add_stage3_notes();
    if (stage_ != 3 && has_muon()) {
      note(
          "Muon keeps whole momenta where DeepSpeed's loader makes partitions: this loads on one "
          "data-parallel rank, or on any number without the momentum_buffer.pt files of its "
          "matrices; reshard carries them");
    }
    if (checkpoint_.facts().mesh.ep > 1 && !has_fused_experts()) {
      note(
          "experts have the numbers they have in the whole model: load this with an "
          "expert-parallel degree of 1");
    }
  }

  // engine.py load_checkpoint
  void add_note_on_nvme() {
    if (!checkpoint_.facts().nvme_optimizer) return;
    note(
        "the run had its optimizer on NVMe: a run that still has (offload_optimizer.device nvme) "
        "does not load universal checkpoints; take cpu or none");
  }

  void note_not_restored() {
    std::vector<std::string> lost;
    for (const Param& param : checkpoint_.params()) {
      if (param.kind != ParamKind::trainable && param.alias_of.empty()) lost.push_back(param.name);
    }
    if (lost.empty()) return;
    note(
        "DeepSpeed does not restore buffers and frozen parameters from a universal checkpoint, "
        "here " +
        some_of(lost) + ": the new run has to start with the same values, or use reshard");
  }

  void add_start_notes() {
    const std::vector<std::string>& found = checkpoint_.notes();
    result_.notes.insert(result_.notes.begin(), found.begin(), found.end());
    note(
        "for a run that starts from these weights at stage 1, 2 or 3: hyper-parameters, loss scale "
        "and schedule are the new run's own");
    note_not_restored();
    using Step = InitialStates::Step;
    if (initial_.keys.empty()) {
      note("without optimizer states, which stages 1 and 2 do without and stage 3 does not load");
    } else {
      note(std::string("with the states of ") +
           (initial_.step == Step::tensor ? "torch's Adam and AdamW"
                                          : "DeepSpeed's own Adam and AdamW") +
           " before their first step");
    }
    if (initial_.step == Step::tensor) {
      note(kSharedStep);
    }
  }

  void add_notes_on_whole_states() {
    std::set<std::string> keys;
    for (const Param& param : checkpoint_.params()) {
      for (const WholeState& other : param.others) {
        if (!other.value.value.is_none()) keys.insert(other.key);
      }
    }
    for (const std::string& key : keys) {
      note("the optimizer's state '" + key +
           "' is one value for a whole parameter or many; it is left out");
    }
  }

  // base_optimizer_state of the first file; None at stages 0 and 3.
  Value base_optimizer_state() const {
    if (checkpoint_.optim_files().empty()) return {};
    return checkpoint_.optim_files()
        .front()
        .archive->root()
        .find_or_none(keys::kOptimizerStateDict)
        .find_or_none(keys::kBaseOptimizerState);
  }

  bool has_round_robin() const {
    return checkpoint_.model_files()
        .front()
        .archive->root()
        .find_or_none(keys::kDsConfig)
        .find_or_none("zero_optimization")
        .find_or_none("round_robin_gradients")
        .is_true();
  }

  bool is_elastic() const { return base_optimizer_state().is(Kind::list); }

  bool has_muon() const {
    const Value groups = base_optimizer_state().find_or_none(keys::kParamGroups);
    return std::any_of(
        groups.sequence_or_empty().begin(), groups.sequence_or_empty().end(),
        [](const Value& group) { return group.find_or_none(keys::kUseMuon).is_true(); });
  }

  bool has_fused_experts() const {
    const auto& params = checkpoint_.params();
    return std::any_of(params.begin(), params.end(),
                       [](const Param& param) { return param.form.ep_num_experts.has_value(); });
  }

  // The loader of stage 3 reads Adam's states and the first group's hyper-parameters.
  void add_stage3_notes() {
    std::vector<std::string> without_adam;
    std::set<std::string> unread;
    bool has_step = true;
    for (const Param& param : checkpoint_.params()) {
      if (!is_trained(param)) continue;
      size_t adam = 0;
      for (const ParamState& state : param.states) {
        const bool read = state.key == "exp_avg" || state.key == "exp_avg_sq";
        adam += read ? 1 : 0;
        if (!read) unread.insert(state.key);
      }
      if (adam < 2) without_adam.push_back(param.name);
      has_step = has_step && param.step.archive != nullptr;
    }
    if (!without_adam.empty()) {
      note(
          "DeepSpeed's stage 3 loads universal checkpoints of Adam only, and will not load this "
          "one: no exp_avg or exp_avg_sq for " +
          some_of(without_adam));
    } else if (!has_step) {
      note("DeepSpeed's stage 3 loads no universal checkpoint without a step count");
    }
    if (!unread.empty()) {
      note("DeepSpeed's stage 3 does not read " + some_of({unread.begin(), unread.end()}) +
           "; reshard carries it");
    }
    if (shares_step()) {
      note(kSharedStep);
    }
    if (groups_differ()) {
      note(
          "DeepSpeed's stage 3 gives every parameter group the hyper-parameters of the first one; "
          "here they differ, and reshard keeps them");
    }
  }

  // The loader gives all sub-groups one tensor as their step, which torch's own Adam then adds to
  // once for each of them.
  bool shares_step() const {
    const TorchArchive& archive = *checkpoint_.optim_files().front().archive;
    const Value state = archive.root().find_or_none(keys::kOptimizerStateDict);
    if (state.find_or_none(keys::kFp32FlatGroups).sequence_or_empty().size() < 2) return false;
    const auto& params = checkpoint_.params();
    return std::any_of(params.begin(), params.end(), [](const Param& param) {
      return param.step.archive != nullptr && TorchArchive::is_tensor(param.step.value);
    });
  }

  bool groups_differ() const {
    const TorchArchive& archive = *checkpoint_.optim_files().front().archive;
    const Value inner = archive.root()
                            .find_or_none(keys::kOptimizerStateDict)
                            .find_or_none(keys::kOptimizerStateDict);
    const auto groups = inner.find_or_none(keys::kParamGroups).sequence_or_empty();
    for (const Value& group : groups) {
      if (!same_settings(groups.front(), group)) return true;
    }
    return false;
  }

  // Numbers and flags only: names of groups and lists of parameters differ anyway.
  static bool same_settings(const Value& a, const Value& b) {
    if (!a.is_mapping() || !b.is_mapping()) return true;
    for (const auto& [key, value] : a.as_dict().items) {
      if (!key.is(Kind::string) || key.as_string() == "params") continue;
      if (!same_numbers(value, b.find_or_none(key.as_string()))) return false;
    }
    return true;
  }
  static bool same_numbers(const Value& a, const Value& b) {
    const auto is_number = [](const Value& v) {
      return v.is(Kind::integer) || v.is(Kind::real) || v.is(Kind::boolean);
    };
    if (is_number(a) && is_number(b)) {
      if (a.is(Kind::boolean) || b.is(Kind::boolean)) {
        return a.kind() == b.kind() && a.as_bool() == b.as_bool();
      }
      return a.as_real() == b.as_real();
    }
    const auto left = a.sequence_or_empty();
    const auto right = b.sequence_or_empty();
    if (left.size() != right.size()) return false;
    for (size_t i = 0; i < left.size(); ++i) {
      if (is_number(left[i]) && is_number(right[i]) && !same_numbers(left[i], right[i])) {
        return false;
      }
    }
    return true;
  }

  InputFiles& inputs_;
  const Checkpoint& checkpoint_;
  bool starts_;  // from weights
  int stage_;
  bool flat_;
  InitialStates initial_ = {};
  PlanBuilder plan_;
  UniversalPlan result_;
};

// Where the user sees the output, without a slash at its end.
fs::path named(const fs::path& output) {
  const fs::path absolute = fs::absolute(output);
  return absolute.has_filename() ? absolute : absolute.parent_path();
}

// What DeepSpeed looks at for the name of the universal checkpoint: beside it, as the user sees it,
// whether or not it is a link.
fs::path latest_file(const fs::path& output) {
  return named(output).parent_path() / "latest_universal";
}

std::string name_of(const fs::path& output) {
  return named(output).filename().string();
}

// A folder is refused here with a word on what would be lost; StagedOutput only knows full from
// empty.
bool belongs_to_universal(const fs::path& entry) {
  const std::string name = content_path(entry).filename().string();
  return name == "zero" || name.ends_with("_model_states.pt");
}

}  // namespace

UniversalPlan plan_universal(InputFiles& inputs, const Checkpoint& checkpoint,
                             const UniversalOptions& options) {
  if (!checkpoint.param_files().empty()) {
    throw UsageError(checkpoint.tag_folder().string() + ": is a universal checkpoint already");
  }
  return Planner(inputs, checkpoint).plan(options);
}

void check_universal_place(const Checkpoint& checkpoint, const fs::path& output, bool force) {
  const std::string name = output.empty() ? "" : name_of(output);
  if (name.empty() || name == "." || name == ".." || name == "latest_universal") {
    throw UsageError("'" + output.string() +
                     "' does not name a folder that latest_universal can name");
  }
  check_output_place(checkpoint, output);
  std::error_code failed;
  const fs::path latest = latest_file(output);
  if (fs::is_directory(latest, failed)) {
    throw UsageError(latest.string() + ": a folder has the name of an output file");
  }
  fs::directory_iterator it(output, failed);
  for (const fs::directory_iterator end; !failed && it != end; it.increment(failed)) {
    if (!force) {
      throw std::move(UsageError(output.string() + ": exists already"))
          .with_hint("--force replaces a universal checkpoint");
    }
    if (!belongs_to_universal(it->path())) {
      throw UsageError(output.string() + ": is not replaced, since it holds " +
                       it->path().filename().string() +
                       ", which does not belong to a universal checkpoint");
    }
  }
}

ExecStats run_universal(const UniversalPlan& plan, const InputFiles& inputs,
                        const Checkpoint& checkpoint, const fs::path& output, Progress& progress,
                        const RunOptions& options) {
  RunOptions whole = options;
  whole.stage.whole_folder = true;
  std::vector<InputRecord> records = checkpoint.facts().from_weights
                                         ? checkpoint.records(options.verify)
                                         : records_of(checkpoint.optim_files(), options.verify);
  records.insert(records.end(), plan.model_records.begin(), plan.model_records.end());
  const ExecStats stats = run_plan(plan.plan, inputs, std::move(records),
                                   fs::weakly_canonical(fs::absolute(output)), progress, whole);
  replace_text_file(latest_file(output), name_of(output), options.stage.durable);
  return stats;
}

}  // namespace dsckpt
