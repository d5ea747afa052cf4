#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/kernels.h"
#include "base/text.h"
#include "checkpoint/renamed.h"
#include "dsckpt/error.h"
#include "dsckpt/universal.h"
#include "io/far_files.h"
#include "job/job_impl.h"
#include "job/neighbours.h"
#include "job/next_step.h"
#include "universal/loader_notes.h"
#include "universal/start.h"
#include "universal/universal_dir.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

// Returns whether an earlier run may have written this file of the output folder.
bool belongs_to_universal(const fs::path& file) {
  if (file.has_parent_path()) return *file.begin() == "zero";
  return file.native().ends_with("_model_states.pt");
}

// Notes the files beside the shards that the output folder will not have beside it.
void note_files_beside(const Source& source, const fs::path& output, Job::Impl& job) {
  const Checkpoint& checkpoint = *source->checkpoint;
  std::error_code failed;
  if (output.empty() || checkpoint.facts().from_weights() ||
      !fs::is_directory(source->path, failed))
    return;
  const fs::path named = output.has_filename() ? output : output.parent_path();
  const fs::path above = named.has_parent_path() ? named.parent_path() : fs::path(".");
  if (fs::equivalent(above, source->path, failed)) return;
  const std::string tag = output_tag(checkpoint);
  std::vector<std::string> missing;
  for (const Neighbour& file : find_neighbours(place_in(source, tag)).files) {
    if (is_of_program(file, tag) && !fs::exists(above / file.destination, failed)) {
      missing.push_back(printable(file.destination));
    }
  }
  if (missing.empty()) return;
  job.notes.push_back("files beside the shards are not copied: " + some_of(missing) +
                      "; an output folder in " + shown_path(source->path) + " has them beside it");
}

// {"parameters": [{"name", "shape", "files"}], "files": [{"path", "bytes"}], "bytes_read",
// "bytes_written"}
class UniversalReport : public JobReport {
 public:
  // A folder of the result: a parameter and the names of its files without ".pt".
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
    out["zero_stages"] = stages;
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

  std::string next(const Job::Impl&, const fs::path& output) const override {
    const fs::path above = output.has_parent_path() ? output.parent_path() : fs::path(".");
    return going_on(program, above) +
           ", with \"checkpoint\": {\"load_universal\": true} in the "
           "DeepSpeed configuration";
  }

  std::string stages_text() const {
    if (stages.size() == 1) return "stage " + std::to_string(stages.front()) + " alone";
    return stages.size() == 2 ? "stages 1 and 2" : "stages 1, 2 and 3";
  }

  Program program = Program::deepspeed;
  std::vector<int> stages = {};  // of the loaders that take the result, rising

 private:
  std::vector<Entry> entries_;
};

class Planner {
 public:
  explicit Planner(const Source& source)
      : source_(source),
        inputs_(*source->inputs),
        checkpoint_(*source->checkpoint),
        job_(job_of(source)),
        starts_(checkpoint_.facts().from_weights()),
        is_foreign_(checkpoint_.facts().is_foreign()),
        stage_(starts_ ? 0 : checkpoint_.facts().zero_stage),
        // Plain stage 3 has vectors without shapes. A loader that cuts out slices needs the shapes.
        flat_(stage_ == 3 && checkpoint_.facts().mesh.tp == 1) {
    if (source->like) initial_ = initial_states_like(*source->like);
  }

  Job plan(const UniversalOptions& options) {
    check_patterns(options);
    if (checkpoint_.facts().states != StatesTold::yes) throw unassigned_states(checkpoint_);
    for (const Param& param : checkpoint_.params()) {
      if (is_trained(param)) {
        add_trained(param);
      } else if (stage_ != 3) {
        add_untrained(param);
      }
    }
    if (starts_) {
      lay_out_start(plan_, checkpoint_, initial_.step);
      add_notes(start_notes(checkpoint_, initial_));
    } else if (is_foreign_) {
      check_steps();
      lay_out_start(plan_, checkpoint_, InitialStates::Step::tensor);
      add_notes(going_on_notes(checkpoint_));
    } else {
      lay_out_optimizer_state(plan_, checkpoint_);
      for (const CheckpointFile& file : checkpoint_.files().model) {
        lay_out_model_states(plan_, inputs_, checkpoint_, file);
      }
      add_notes(loader_notes(checkpoint_));
    }
    set_plan(job_, plan_);
    job_.place.whole = true;
    job_.place.is_ours = belongs_to_universal;
    job_.place.replaced = "a universal checkpoint";
    job_.place.foreign = "does not belong to a universal checkpoint";
    job_.place.pointer = "latest_universal";
    report_.stages = stages_that_load();
    job_.what = counted(report_.size(), "parameter") + " in " +
                counted(job_.plan.outputs().size(), "file") + " for " + report_.stages_text();
    report_.program = program_of(checkpoint_);
    job_.report = std::make_shared<const UniversalReport>(std::move(report_));
    note_files_beside(source_, options.output, job_);
    return Job(std::move(job_));
  }

 private:
  // Stages 1 and 2 need files that the loader of stage 3 does not know, and vice versa.
  std::vector<int> stages_that_load() const {
    if (starts_ || is_foreign_) return {1, 2, 3};
    return stage_ == 3 ? std::vector<int>{3} : std::vector<int>{1, 2};
  }

  void note(std::string text) { job_.notes.push_back(std::move(text)); }
  void add_notes(std::vector<std::string> notes) {
    for (std::string& text : notes) note(std::move(text));
  }

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

  // Stage 3 reads one step for all parameters, and no training can continue without states.
  void check_steps() const {
    for (const Param& param : checkpoint_.params()) {
      if (!is_trained(param) || !param.states.empty()) continue;
      throw UnsupportedError(
          {.file = checkpoint_.tag_folder().string(), .tensor = param.name},
          "has no optimizer states: a universal checkpoint is for resuming a training")
          .with_hint(
              "zero-to-fp32 writes its weights, and to-universal turns weights into a start");
    }
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
      // The loader cuts every tensor along its first dimension, so a scalar needs one.
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
    // Other frameworks may have trained in 16 bits, but the loader needs masters in 32.
    const bool widens = is_foreign_ && param.weight.dtype() != DType::float32;
    add("fp32", widens ? param.weight.to(DType::float32) : param.weight, param.requires_grad);
    for (const ParamState& state : param.states) {
      add(state.key, is_foreign_ ? state.value.to(DType::float32) : state.value, false);
    }
    if (stage_ != 3 && param.step.archive != nullptr) {
      lay_out_universal_step(plan_, param.name, *param.step.archive, param.step.value);
      entry.files.push_back("step");
    }
    report_.add(std::move(entry));
  }

  // Lays out frozen parameters, buffers and tied names in fp32, as DeepSpeed does. DeepSpeed drops
  // the imaginary part of complex ones. The loader does not read these files, but tools do.
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

  const Source& source_;
  InputFiles& inputs_;
  const Checkpoint& checkpoint_;
  Job::Impl job_;
  bool starts_;  // the input is weights
  bool is_foreign_;
  int stage_;
  bool flat_;
  InitialStates initial_ = {};
  PlanBuilder plan_;
  UniversalReport report_;
};

}  // namespace

Job plan_universal(const Source& source, const UniversalOptions& options) {
  const Checkpoint& checkpoint = *source->checkpoint;
  if (source->like && !checkpoint.facts().from_weights()) {
    throw UsageError("--like is for weights, and the input is a checkpoint");
  }
  if (source->like && source->like->facts().model_parallel) {
    throw UnsupportedError({.file = source->like->tag_folder().string()},
                           "is of a model that is split over ranks; a universal checkpoint for "
                           "the start of a run is made like a data-parallel one only")
        .with_hint("reshard --like makes the files of such a run's ranks");
  }
  if (checkpoint.facts().has_given_weights()) {
    throw UsageError("other weights are given to native checkpoints: reshard");
  }
  if (source->options.set_change.any()) {
    throw UsageError("another set of parameters is for native checkpoints: reshard");
  }
  refuse_renamed_slices(checkpoint);
  check_weights_are_read(checkpoint);
  if (!checkpoint.files().params.empty()) {
    throw UsageError(checkpoint.tag_folder().string() + ": is a universal checkpoint already");
  }
  return Planner(source).plan(options);
}

}  // namespace dsckpt
