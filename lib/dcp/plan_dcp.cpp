#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/kernels.h"
#include "base/keyed_hash.h"
#include "base/text.h"
#include "checkpoint/find/saved_states.h"
#include "dcp/dcp_writer.h"
#include "deepspeed/keys.h"
#include "dsckpt/dcp.h"
#include "dsckpt/error.h"
#include "io/far_files.h"
#include "job/cast.h"
#include "job/hyper_parameters.h"
#include "job/job_impl.h"
#include "job/neighbours.h"
#include "job/next_step.h"
#include "job/place.h"

namespace dsckpt {
namespace fs = std::filesystem;
using pickle::Document;
using pickle::Kind;
using pickle::Value;
namespace {

// The folders below the output, and the beginnings of all keys.
struct PresetKeys {
  std::string model_folder = {};
  std::string optimizer_folder = {};
  DcpPath model = {};
  DcpPath optimizer = {};
};

PresetKeys keys_of(DcpPreset preset) {
  switch (preset) {
    case DcpPreset::torch:
      return {.model = {"model"}, .optimizer = {"optim"}};
    case DcpPreset::trainer:
    case DcpPreset::accelerate:  // accelerate/utils/fsdp_utils.py, constants.py
      return {.model_folder = std::string(kAccelerateModel) + "0",
              .optimizer_folder = std::string(kAccelerateOptimizer) + "0",
              .model = {"model"},
              .optimizer = {"optimizer"}};
    case DcpPreset::torchtitan:
      return {.model = {}, .optimizer = {"optimizer"}};
    case DcpPreset::lightning:  // lightning/fabric/strategies/model_parallel.py
      return {.model = {"model"}, .optimizer = {"optimizer"}};
  }
  return {};
}

constexpr std::string_view kLightningFile = "meta.pt";
// transformers/trainer.py SCHEDULER_NAME, TRAINER_STATE_NAME
constexpr std::string_view kSchedule = "scheduler.pt";
constexpr std::string_view kTrainerState = "trainer_state.json";
constexpr const char* kWithoutOptimizer = "--weights-only leaves the optimizer out";
// The key below `deepspeed`, unless the program has saved something of that name.
constexpr std::string_view kLossScale = "loss_scale";

// Returns whether an earlier run may have written this file of the output folder.
bool belongs_to_dcp(const fs::path& file) {
  return is_dcp_name(file.filename().string()) || file.native() == kLightningFile;
}

// Entries of model-states files that only the engine itself can use: engine.py _save_checkpoint,
// and entries that clients add for DeepSpeed's converters.
bool is_of_the_engine(std::string_view key) {
  constexpr std::array kEngine = {keys::kModule,
                                  keys::kBufferNames,
                                  keys::kOptimizer,
                                  keys::kParamShapes,
                                  keys::kSharedParams,
                                  keys::kFrozenParamShapes,
                                  keys::kDpWorldSize,
                                  keys::kFrozenParamFragments,
                                  keys::kMpWorldSize,
                                  keys::kSparseTensorNames,
                                  keys::kDsConfig,
                                  keys::kDsVersion,
                                  keys::kAutoEpLayers,
                                  keys::kCheckpointParallelDimensions,
                                  keys::kFolding,
                                  keys::kUniversalCheckpointInfo,
                                  keys::kStripped,
                                  keys::kAutoEpLayersLegacy,
                                  keys::kOptimizerStateDict};
  return std::find(kEngine.begin(), kEngine.end(), key) != kEngine.end();
}

// {"tensors": [{"key", "dtype", "shape", "chunks"}], "keys", "chunks", "least_chunk_bytes",
// "metadata_bytes", "files": [...], "bytes_read", "bytes_written"}
class DcpReport : public JobReport {
 public:
  explicit DcpReport(DcpPreset preset) : preset_(preset) {}

  void add(DcpWriter::Contents contents) {
    tensors_.insert(tensors_.end(), contents.tensors.begin(), contents.tensors.end());
    keys_ += contents.keys;
    chunks_ += contents.chunks;
    metadata_bytes_ += contents.metadata_bytes;
    least_ = std::max(least_, contents.least_chunk_bytes);
  }
  size_t tensors() const { return tensors_.size(); }

  nlohmann::json json(const Job::Impl& job) const override {
    nlohmann::json tensors = nlohmann::json::array();
    for (const DcpWriter::Tensor& tensor : tensors_) {
      tensors.push_back({{"key", tensor.key},
                         {"dtype", torch_name(tensor.dtype)},
                         {"shape", tensor.shape},
                         {"chunks", tensor.chunks}});
    }
    nlohmann::json out = plan_json(job.plan);
    out["tensors"] = std::move(tensors);
    out["keys"] = keys_;
    out["chunks"] = chunks_;
    out["metadata_bytes"] = metadata_bytes_;
    out["least_chunk_bytes"] = least_;
    return out;
  }

  Listing listing(const Job::Impl& job) const override {
    Listing listing;
    for (const DcpWriter::Tensor& tensor : tensors_) {
      listing.rows.push_back({printable(tensor.key), std::string(torch_name(tensor.dtype)),
                              to_text(tensor.shape), counted(tensor.chunks, "chunk")});
    }
    listing.below.push_back(counted(keys_, "key") + ", " + counted(chunks_, "chunk") + " of " +
                            human_bytes(least_) + " or a rank's shard at least, metadata of " +
                            human_bytes(metadata_bytes_));
    listing.below.push_back(plan_totals(job.plan));
    return listing;
  }

  std::string next(const Job::Impl&, const fs::path& output) const override {
    const std::string folder = python_text(output.string());
    switch (preset_) {
      case DcpPreset::accelerate:
        return going_on(Program::accelerate, output);
      case DcpPreset::trainer:
        return going_on(Program::trainer, output);
      case DcpPreset::torchtitan:
        return "--checkpoint.initial_load_path " + shell_word(output.string());
      case DcpPreset::lightning:
        return "fabric.load(" + folder + ", state)";
      case DcpPreset::torch:
        break;
    }
    return "torch.distributed.checkpoint.load(state_dict, checkpoint_id=" + folder + ")";
  }

 private:
  DcpPreset preset_;
  std::vector<DcpWriter::Tensor> tensors_;
  uint64_t keys_ = 0;
  uint64_t chunks_ = 0;
  uint64_t metadata_bytes_ = 0;
  uint64_t least_ = 0;
};

DcpPath operator+(DcpPath path, DcpStep step) {
  path.push_back(std::move(step));
  return path;
}

class DcpPlanner {
 public:
  DcpPlanner(const Source& source, const DcpOptions& options)
      : source_(source),
        checkpoint_(*source->checkpoint),
        options_(options),
        keys_(keys_of(options.preset)),
        job_(job_of(source)),
        model_(keys_.model_folder, options.dp, input_bytes()),
        optimizer_(keys_.optimizer_folder, options.dp, input_bytes()),
        one_folder_(keys_.model_folder == keys_.optimizer_folder) {}

  Job plan() {
    add_weights();
    if (!options_.weights_only) {
      add_optimizer();
      add_run();
      find_beside();
    }
    DcpReport report(options_.preset);
    report.add(std::move(model_).lay_out(plan_));
    if (!one_folder_ && has_optimizer_) report.add(std::move(optimizer_).lay_out(plan_));
    if (options_.preset == DcpPreset::lightning) lay_out_lightning_file();
    lay_out_neighbours(*source_->inputs, beside_, plan_);
    if (makes_schedule_) lay_out_schedule();
    set_plan(job_, plan_);
    job_.place.whole = true;
    job_.place.is_ours = [files = beside_](const fs::path& path) {
      return belongs_to_dcp(path) || path == kSchedule ||
             std::any_of(files.begin(), files.end(),
                         [&](const Neighbour& file) { return file.destination == path; });
    };
    job_.place.replaced = "a checkpoint of torch.distributed.checkpoint";
    job_.place.foreign = "does not belong to a checkpoint of torch.distributed.checkpoint";
    job_.what = counted(report.tensors(), "tensor") + " in " +
                counted(job_.plan.outputs().size(), "file") + " for " +
                counted(options_.dp, "rank") +
                (has_optimizer_ ? ", an optimizer of " + groups_text(checkpoint_.groups()) : "");
    job_.report = std::make_shared<const DcpReport>(std::move(report));
    return Job(std::move(job_));
  }

 private:
  uint64_t input_bytes() const {
    uint64_t bytes = 0;
    for (FileId id = 0; id < job_.inputs->size(); ++id) bytes += (*job_.inputs)[id].size();
    return bytes;
  }
  void note(std::string text) { job_.notes.push_back(std::move(text)); }
  void note_once(std::string text) {
    if (noted_.insert(text).second) note(std::move(text));
  }
  DcpWriter& optimizer_folder() { return one_folder_ ? model_ : optimizer_; }

  // FSDP2 shards all parameters, also frozen ones. Buffers stay whole on every rank.
  void add_weights() {
    KeyedMap<std::string_view, std::vector<DcpPath>> names;
    for (const Param& param : checkpoint_.params()) {
      names[param.alias_of.empty() ? param.name : param.alias_of].push_back(keys_.model +
                                                                            param.name);
    }
    if (names.empty()) throw UsageError("there is no tensor to write");
    for (const Param& param : checkpoint_.params()) {
      const auto found = names.find(param.alias_of.empty() ? param.name : param.alias_of);
      if (found == names.end()) continue;  // written with an earlier name
      model_.add_tensor(
          std::move(found->second), cast(param, options_.dtype, job_.notes),
          param.kind == ParamKind::buffer ? DcpWriter::Cut::whole : DcpWriter::Cut::rows);
      names.erase(found);
    }
    if (!checkpoint_.facts().has_masters && !checkpoint_.facts().from_weights()) {
      note("the weights are the model's own 16-bit ones: no file has fp32 masters of them");
    }
  }

  void add_optimizer() {
    if (checkpoint_.facts().from_weights() || !checkpoint_.averaged().empty()) {
      note("there are only weights: the folder has no optimizer");
      return;
    }
    if (checkpoint_.facts().states != StatesTold::yes) throw unassigned_states(checkpoint_);
    if (checkpoint_.groups().empty()) throw unknown_groups(checkpoint_, kWithoutOptimizer);
    has_optimizer_ = true;
    for (const Param& param : checkpoint_.params()) {
      if (is_trained(param)) add_states(param);
    }
    std::vector<std::string> without_options;
    for (size_t g = 0; g < checkpoint_.groups().size(); ++g) {
      if (!add_group(g)) without_options.push_back(std::to_string(g));
    }
    if (!without_options.empty()) {
      note("the files have no hyper-parameters of the optimizer's groups " +
           some_of(without_options) +
           ": the run that loads the folder keeps its own (allow_partial_load)");
    }
  }

  DcpPath state_path(const Param& param, const std::string& key) const {
    return keys_.optimizer + "state" + param.name + key;
  }

  void add_states(const Param& param) {
    if (const std::optional<double> step = float_step_of(param)) {
      optimizer_folder().add_float({state_path(param, "step")}, static_cast<float>(*step));
    } else if (is_adam(param.states)) {
      // Old releases counted steps for a whole group, and once more for each sub-group at stage 3.
      throw UnsupportedError({.tensor = param.name}, "has moments, but no step of its own")
          .with_hint(kWithoutOptimizer);
    }
    for (const ParamState& state : param.states) {
      optimizer_folder().add_tensor({state_path(param, state.key)},
                                    without_padding(param, state.value), DcpWriter::Cut::rows);
    }
    for (const WholeState& other : param.others) add_whole_state(param, other);
  }

  static std::optional<double> float_step_of(const Param& param) {
    if (param.step.archive == nullptr) return std::nullopt;
    const std::optional<double> step = step_of(param);
    if (!step) throw UnsupportedError({.tensor = param.name}, "has a step that is not a number");
    if (static_cast<float>(*step) != *step) {
      throw UnsupportedError({.tensor = param.name}, "has a step that is not a float32");
    }
    return step;
  }

  void add_whole_state(const Param& param, const WholeState& other) {
    if (is_computed_anew(other)) return;
    const auto refuse = [&](const char* why) {
      throw UnsupportedError({.tensor = param.name},
                             "the optimizer's state '" + printable(other.key) + "' " + why)
          .with_hint(kWithoutOptimizer);
    };
    const ShardValue& value = other.value;
    if (!other.same_on_all_ranks) refuse("is not the same on all ranks");
    if (TorchArchive::is_tensor(value.value)) {
      const TensorInfo info = value.archive->info(value.value);
      const std::optional<double> number = value.archive->scalar(value.value);
      if (!number || !info.shape.empty() || info.dtype != DType::float32) {
        refuse("is not one value an element");
      }
      optimizer_folder().add_float({state_path(param, other.key)}, static_cast<float>(*number));
      return;
    }
    if (!plain_.is_plain(value.value)) refuse("is not plain data");
    add_plain({state_path(param, other.key)}, *value.archive, value.value, optimizer_folder());
  }

  static void add_plain(std::vector<DcpPath> keys, const TorchArchive& archive, const Value& value,
                        DcpWriter& folder) {
    TorchArchiveWriter writer;
    writer.document().set_root(writer.import(archive, value));
    folder.add_value(std::move(keys), std::move(writer).write());
  }

  // Groups can share their settings, but each group costs the time for its settings.
  void count_options(const ParamGroup& group) {
    constexpr uint64_t kMostOptions = 1 << 22;
    if (group.settings.archive == nullptr || !group.settings.value.is_mapping()) return;
    options_of_groups_ += group.settings.value.as_dict().items.size();
    if (options_of_groups_ <= kMostOptions) return;
    throw UnsupportedError({}, "the optimizer's groups have too many options together");
  }

  // In the nested form an option has one key; in the flattened form it has a key for each
  // parameter. Returns false if the files have no options.
  bool add_group(size_t index) {
    const ParamGroup& group = checkpoint_.groups()[index];
    const DcpPath groups = keys_.optimizer + "param_groups" + static_cast<int64_t>(index);
    const Param* first = group.params.empty() ? nullptr : checkpoint_.find(group.params.front());
    count_options(group);
    std::vector<HyperParameter> options =
        hyper_parameters(checkpoint_, group, first != nullptr && is_adam(first->states), plain_,
                         [&](std::string text) { note_once(std::move(text)); });
    const bool has_options = !options.empty();
    for (HyperParameter& option : options) {
      std::vector<DcpPath> keys{groups + option.key};
      for (const std::string& name : group.params) {
        keys.push_back(keys_.optimizer + ("param_groups." + name + "." + option.key));
      }
      TorchArchiveWriter writer;
      writer.document().set_root(option.value(writer));
      optimizer_folder().add_value(std::move(keys), std::move(writer).write());
    }
    TorchArchiveWriter writer;
    std::vector<Value> names;
    for (const std::string& name : group.params) {
      names.push_back(writer.document().string(name));
    }
    writer.document().set_root(writer.document().list(std::move(names)));
    optimizer_folder().add_value({groups + "params"}, std::move(writer).write());
    return has_options;
  }

  // Adds counters, the scheduler and other plain data of the program. Loaders ignore these keys,
  // and programs ask for them by name.
  void add_run() {
    if (checkpoint_.files().model.empty()) return;
    const TorchArchive& archive = *checkpoint_.files().model.front().archive;
    if (!archive.root().is_mapping()) return;
    std::vector<std::string> left_out;
    for (const auto& [key, value] : archive.root().as_dict().items) {
      if (!key.is(Kind::string) || is_of_the_engine(key.as_string()) || value.is_none()) continue;
      std::string name(key.as_string());
      if (plain_.is_plain(value)) {
        add_plain({DcpPath{"deepspeed", name}}, archive, value, model_);
        run_.emplace_back(std::move(name), value);
      } else {
        left_out.push_back(std::move(name));
      }
    }
    for (std::string& name : left_out) name = printable(name);
    if (!left_out.empty()) {
      note("values of the model-states file that are not plain data are left out: " +
           some_of(left_out));
    }
    if (!archive.root().find(kLossScale)) add_loss_scale();
  }

  void add_loss_scale() {
    const ShardValue wrapper = checkpoint_.wrapper_state();
    if (wrapper.archive == nullptr) return;
    Value scaler = wrapper.value.find_or_none(keys::kLossScaler);
    if (scaler.is(Kind::object)) scaler = scaler.as_object().state;
    Value scale = scaler.find_or_none("cur_scale");
    if (scale.is_none()) scale = wrapper.value.find_or_none("cur_scale");
    if (!scale.is(Kind::real) && !scale.is(Kind::integer)) return;
    add_plain({DcpPath{"deepspeed", std::string(kLossScale)}}, *wrapper.archive, scale, model_);
  }

  bool takes_files() const {
    return options_.preset == DcpPreset::trainer || options_.preset == DcpPreset::accelerate;
  }

  // Finds files of the Trainer and of Accelerate beside the shards, which belong to their
  // checkpoints.
  void find_beside() {
    std::error_code failed;
    if (!fs::is_directory(source_->path, failed)) return;
    const std::string tag = output_tag(checkpoint_);
    Neighbours found =
        find_neighbours(place_in(source_, tag), checkpoint_.facts().mesh.dp, options_.dp);
    std::vector<std::string> left_out;
    for (Neighbour& file : found.files) {
      if (takes_files() && is_of_program(file, tag)) {
        beside_.push_back(std::move(file));
      } else if (file.destination != kConverterScript) {
        left_out.push_back(printable(file.destination));
      }
    }
    if (!left_out.empty()) {
      note("files beside the shards are left out: " + some_of(left_out) +
           (takes_files() ? "" : "; --preset accelerate and trainer take those of these programs"));
    }
    if (takes_files()) job_.notes.insert(job_.notes.end(), found.notes.begin(), found.notes.end());
    if (options_.preset == DcpPreset::trainer) check_trainers();
  }

  // Without a schedule the Trainer skips the optimizer too: _load_optimizer_and_scheduler.
  void check_trainers() {
    const auto has = [&](std::string_view name) {
      return std::any_of(beside_.begin(), beside_.end(),
                         [&](const Neighbour& file) { return file.destination == name; });
    };
    if (!has(kTrainerState)) {
      throw UsageError(shown_path(source_->path) + ": has no " + std::string(kTrainerState) +
                       ", so the Trainer would not resume from the result")
          .with_hint("give the folder checkpoint-N that it saved, or --preset accelerate");
    }
    makes_schedule_ = has_optimizer_ && !has(kSchedule);
    if (makes_schedule_) {
      note("there is no " + std::string(kSchedule) +
           " (DeepSpeed had the schedule): one is written that continues at step " +
           std::to_string(checkpoint_.facts().global_steps.value_or(0)));
    }
  }

  // torch/optim/lr_scheduler.py LambdaLR.state_dict. The program itself has the functions.
  void lay_out_schedule() {
    TorchArchiveWriter writer;
    pickle::Document& document = writer.document();
    const Value root = document.dict();
    const int64_t steps = checkpoint_.facts().global_steps.value_or(0);
    std::vector<Value> first;
    std::vector<Value> last;
    for (const ParamGroup& group : checkpoint_.groups()) {
      const GroupRates rates = rates_of(checkpoint_, group);
      first.push_back(Document::real(rates.first));
      last.push_back(Document::real(rates.now));
    }
    const std::vector<Value> none(checkpoint_.groups().size());
    document.set_item(root, document.intern("base_lrs"), document.list(std::move(first)));
    document.set_item(root, document.intern("last_epoch"), Document::integer(steps));
    document.set_item(root, document.intern("_step_count"), Document::integer(steps + 1));
    document.set_item(root, document.intern("_last_lr"), document.list(std::move(last)));
    document.set_item(root, document.intern("lr_lambdas"), document.list(none));
    document.set_root(root);
    std::move(writer).lay_out(plan_, std::string(kSchedule));
  }

  // Fabric takes a folder with this file for its own checkpoint.
  void lay_out_lightning_file() {
    TorchArchiveWriter writer;
    const Value root = writer.document().dict();
    for (const auto& [name, value] : run_) {
      const TorchArchive& archive = *checkpoint_.files().model.front().archive;
      writer.document().set_item(root, writer.document().intern(name),
                                 writer.import(archive, value));
    }
    writer.document().set_root(root);
    std::move(writer).lay_out(plan_, std::string(kLightningFile));
  }

  const Source& source_;
  const Checkpoint& checkpoint_;
  const DcpOptions& options_;
  PresetKeys keys_;
  Job::Impl job_;
  DcpWriter model_;
  DcpWriter optimizer_;  // unless one_folder_
  bool one_folder_;
  bool has_optimizer_ = false;
  PlainData plain_;
  uint64_t options_of_groups_ = 0;
  KeyedSet<std::string> noted_;  // arguments of note_once()
  std::vector<Neighbour> beside_;
  bool makes_schedule_ = false;
  std::vector<std::pair<std::string, Value>> run_;  // entries that add_run() has added
  PlanBuilder plan_;
};

}  // namespace

Job plan_dcp(const Source& source, const DcpOptions& options) {
  if (options.dp == 0 || options.dp > kMostDcpRanks) {
    throw UsageError("--dp is a number from 1 to " + std::to_string(kMostDcpRanks));
  }
  if (source->options.set_change.any()) {
    throw UsageError("another set of parameters is for native checkpoints: reshard");
  }
  check_weights_are_read(*source->checkpoint);
  return DcpPlanner(source, options).plan();
}

}  // namespace dsckpt
