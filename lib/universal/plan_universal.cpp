#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "base/kernels.h"
#include "base/text.h"
#include "deepspeed/keys.h"
#include "deepspeed/run_config.h"
#include "dsckpt/error.h"
#include "dsckpt/universal.h"
#include "job/job_impl.h"
#include "universal/metadata.h"
#include "universal/start.h"
#include "universal/universal_dir.h"

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

// Of the output folder, whether an earlier run may have written it.
bool belongs_to_universal(const fs::path& file) {
  if (file.has_parent_path()) return *file.begin() == "zero";
  return file.native().ends_with("_model_states.pt");
}

// {"parameters": [{"name", "shape", "files"}], "files": [{"path", "bytes"}], "bytes_read",
// "bytes_written"}
class UniversalReport : public JobReport {
 public:
  // One folder in the result: a parameter and the files it has, without ".pt".
  struct Entry {
    std::string name;
    Shape shape;
    std::vector<std::string> files;
  };

  void add(Entry entry) { entries_.push_back(std::move(entry)); }
  size_t size() const { return entries_.size(); }

  nlohmann::json json(const Job::Impl& job) const override {
    nlohmann::json parameters = nlohmann::json::array();
    for (const Entry& entry : entries_) {
      parameters.push_back({{"name", entry.name}, {"shape", entry.shape}, {"files", entry.files}});
    }
    nlohmann::json out = plan_json(job.plan);
    out["parameters"] = std::move(parameters);
    return out;
  }

  Listing listing(const Job::Impl& job) const override {
    Listing listing;
    for (const Entry& entry : entries_) {
      std::string files;
      for (const std::string& file : entry.files) {
        files += (files.empty() ? "" : ",") + printable(file);
      }
      listing.rows.push_back({printable(entry.name), to_text(entry.shape), std::move(files)});
    }
    listing.below.push_back(plan_totals(job.plan));
    return listing;
  }

 private:
  std::vector<Entry> entries_;
};

class Planner {
 public:
  explicit Planner(const Source& source)
      : inputs_(*source->inputs),
        checkpoint_(*source->checkpoint),
        job_(job_of(source)),
        starts_(checkpoint_.facts().from_weights),
        stage_(starts_ ? 0 : checkpoint_.facts().zero_stage),
        // Plain stage 3 has vectors without shapes; where the loader has to cut slices out, it
        // needs shapes.
        flat_(stage_ == 3 && checkpoint_.facts().mesh.tp == 1) {
    if (source->like) initial_ = initial_states_like(*source->like);
  }

  Job plan(const UniversalOptions& options) {
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
    set_plan(job_, plan_);
    job_.place.whole = true;
    job_.place.is_ours = belongs_to_universal;
    job_.place.replaced = "a universal checkpoint";
    job_.place.foreign = "does not belong to a universal checkpoint";
    job_.place.pointer = "latest_universal";
    job_.what = std::to_string(report_.size()) + " parameters in " +
                std::to_string(job_.plan.outputs().size()) + " files";
    job_.report = std::make_shared<const UniversalReport>(std::move(report_));
    return Job(std::move(job_));
  }

 private:
  // All records of these files count, also those nothing is made of: they are copied.
  void add_model_files() {
    job_.checked = checkpoint_.optim_files();
    job_.records = records_of(checkpoint_.model_files(), true);
    std::span<const InputRecord> rest = job_.records;
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

  void note(std::string text) { job_.notes.push_back(std::move(text)); }

  void check_patterns(const UniversalOptions& options) {
    const std::vector<std::string>& unused = checkpoint_.unused_patterns();
    if (unused.empty()) return;
    if (options.strict) {
      throw UsageError("patterns of universal_checkpoint_info that fit no parameter: " +
                       some_of(unused))
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
    UniversalReport::Entry entry{param.name, saved_shape(param, flat), {}};
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
      report_.add(std::move(entry));
      return;
    }
    add("fp32", param.weight, param.requires_grad);
    for (const ParamState& state : param.states) add(state.key, state.value, false);
    if (stage_ != 3 && param.step.archive != nullptr) {
      lay_out_universal_step(plan_, param.name, *param.step.archive, param.step.value);
      entry.files.push_back("step");
    }
    report_.add(std::move(entry));
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
    report_.add({param.name, param.weight.shape(), {"fp32"}});
  }

  void add_notes() {
    if (stage_ != 3 && !checkpoint_.facts().has_universal_info) {
      note("there is no universal_checkpoint_info; none is needed, since no parameter is cut");
    }
    note_not_restored();
    if (stage_ != 3 && checkpoint_.run_config().round_robin_gradients) {
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
  Job::Impl job_;
  bool starts_;  // from weights
  int stage_;
  bool flat_;
  InitialStates initial_ = {};
  PlanBuilder plan_;
  UniversalReport report_;
};

}  // namespace

Job plan_universal(const Source& source, const UniversalOptions& options) {
  const Checkpoint& checkpoint = *source->checkpoint;
  if (source->like && !checkpoint.facts().from_weights) {
    throw UsageError("--like is for weights, and the input is a checkpoint");
  }
  if (!checkpoint.param_files().empty()) {
    throw UsageError(checkpoint.tag_folder().string() + ": is a universal checkpoint already");
  }
  return Planner(source).plan(options);
}

}  // namespace dsckpt
