#include "universal.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/kernels.h"
#include "checkpoint/keys.h"
#include "output/universal_dir.h"

namespace dsckpt {
namespace fs = std::filesystem;
using pickle::Document;
using pickle::Kind;
using pickle::Value;
namespace {

constexpr std::string_view kParamGroups = "param_groups";

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

Value at_or_none(const Value& mapping, std::string_view key) {
  if (!mapping.is_mapping()) return {};
  return mapping.find(key).value_or(Value());
}

std::span<const Value> sequence_or_empty(const Value& value) {
  return value.is(Kind::list) || value.is(Kind::tuple) ? value.as_sequence()
                                                       : std::span<const Value>();
}

bool is_flat_tensor(const TorchArchive& archive, const Value& value) {
  return TorchArchive::is_tensor(value) && archive.info(value).shape.size() == 1;
}

// Writes a copy of one shard's pickle, or of parts of it, that has been changed on the way.
class Copy {
 public:
  explicit Copy(const TorchArchive& from) : from_(from) {}

  Document& document() { return writer_.document(); }
  Value of(const Value& value) { return writer_.import(from_, value); }
  void set(const Value& dict, std::string_view key, Value value) {
    document().set_item(dict, document().intern(key), value);
  }
  // The items of `mapping` in order, each as `change` has it; what it gives no value for is left
  // out.
  template <typename F>
  Value dict_of(const Value& mapping, F&& change) {
    Value dict = document().dict();
    for (const auto& [key, value] : mapping.as_dict().items) {
      const std::optional<Value> changed =
          change(key.is(Kind::string) ? key.as_string() : std::string_view(), value);
      if (changed) document().set_item(dict, of(key), *changed);
    }
    return dict;
  }
  void lay_out(Value root, PlanBuilder& plan, std::string path) {
    document().set_root(root);
    std::move(writer_).lay_out(plan, std::move(path));
  }

 private:
  const TorchArchive& from_;
  TorchArchiveWriter writer_;
};

class Planner {
 public:
  Planner(InputFiles& inputs, const Checkpoint& checkpoint)
      : inputs_(inputs),
        checkpoint_(checkpoint),
        stage_(checkpoint.facts().zero_stage),
        // Plain stage 3 has vectors without shapes; where the loader has to cut slices out, it
        // needs shapes.
        flat_(stage_ == 3 && checkpoint.facts().mesh.tp == 1) {}

  UniversalPlan plan(const UniversalOptions& options) {
    check_patterns(options);
    for (const Param& param : checkpoint_.params()) {
      if (is_trained(param)) {
        add_trained(param);
      } else if (stage_ != 3) {
        add_untrained(param);
      }
    }
    add_optimizer_state();
    for (const CheckpointFile& file : checkpoint_.model_files()) add_model_file(file);
    add_notes();
    result_.plan = plan_.finish();
    result_.plan.validate(planned_inputs(inputs_));
    return std::move(result_);
  }

 private:
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

  void add_optimizer_state() {
    constexpr std::string_view kPath = "zero/optimizer_state.pt";
    if (checkpoint_.optim_files().empty()) return add_stage0_optimizer_state(std::string(kPath));
    const TorchArchive& archive = *checkpoint_.optim_files().front().archive;
    const Value state = archive.root().at(keys::kOptimizerStateDict);
    Copy copy(archive);
    const Value root =
        stage_ == 3 ? stage3_state(copy, archive, state) : stage12_state(copy, state);
    copy.lay_out(root, plan_, std::string(kPath));
  }

  // What belongs to a rank's partition is left out, what says how it is cut is said of uncut
  // parameters.
  Value stage12_state(Copy& copy, const Value& state) {
    Document& document = copy.document();
    const Value root =
        copy.dict_of(state, [&](std::string_view key, const Value& value) -> std::optional<Value> {
          if (key == keys::kBaseOptimizerState || key == keys::kParamSliceMappings ||
              key == keys::kSingleFp32Partition) {
            return std::nullopt;
          }
          const bool paddings = key == keys::kGroupPaddings;
          if ((!paddings && key != keys::kPartitionCount) || !value.is(Kind::list)) {
            return copy.of(value);
          }
          const int64_t number = paddings ? 0 : int64_t{checkpoint_.facts().mesh.dp};
          return document.list(
              std::vector<Value>(value.as_sequence().size(), Document::integer(number)));
        });
    const Value base = at_or_none(state, keys::kBaseOptimizerState);
    if (!base.is(Kind::list)) {
      copy.set(root, kParamGroups, copy.of(base.at(kParamGroups)));
      return root;
    }
    // Elastic files have no hyper-parameters; the loader leaves the engine's own where there are
    // none.
    std::vector<Value> groups;
    for (size_t g = 0; g < base.as_sequence().size(); ++g) {
      Value group = document.dict();
      copy.set(group, "params", document.list({Document::integer(static_cast<int64_t>(g))}));
      groups.push_back(group);
    }
    copy.set(root, kParamGroups, document.list(std::move(groups)));
    note("the checkpoint is elastic and has no hyper-parameters: those of the new run count");
    return root;
  }

  // stage3.py load_hp_checkpoint_state_from_checkpoint_dir_stage3 reads a step, the
  // hyper-parameters and the loss scale; rank 0's flat tensors, which ds_to_universal.py keeps, are
  // not read.
  static Value stage3_state(Copy& copy, const TorchArchive& archive, const Value& state) {
    const auto without_flat = [&](const Value& states) {
      return copy.dict_of(states,
                          [&](std::string_view, const Value& value) -> std::optional<Value> {
                            if (is_flat_tensor(archive, value)) return std::nullopt;
                            return copy.of(value);
                          });
    };
    const Value root =
        copy.dict_of(state, [&](std::string_view key, const Value& value) -> std::optional<Value> {
          if (key == keys::kFp32FlatGroups) return std::nullopt;
          if (key != keys::kOptimizerStateDict) return copy.of(value);
          return copy.dict_of(
              value, [&](std::string_view inner, const Value& item) -> std::optional<Value> {
                if (inner != "state") return copy.of(item);
                return copy.dict_of(item, [&](std::string_view, const Value& states) {
                  return std::optional(states.is_mapping() ? without_flat(states)
                                                           : copy.of(states));
                });
              });
        });
    copy.set(root, kParamGroups, copy.of(state.at(keys::kOptimizerStateDict).at(kParamGroups)));
    return root;
  }

  // There is no ZeRO state at stage 0; the same facts are in the optimizer's own.
  void add_stage0_optimizer_state(std::string path) {
    const TorchArchive& archive = *checkpoint_.model_files().front().archive;
    const Value optimizer = at_or_none(archive.root(), keys::kOptimizer);
    const Value config = at_or_none(archive.root(), keys::kDsConfig);
    if (!optimizer.is_mapping()) {
      throw UnsupportedError({.file = checkpoint_.model_files().front().path.string()},
                             "has no optimizer state: a universal checkpoint is for going on with "
                             "the training");
    }
    const Value wrapped = at_or_none(optimizer, keys::kOptimizerStateDict);
    const Value& inner = wrapped.is_mapping() ? wrapped : optimizer;
    Copy copy(archive);
    Document& document = copy.document();
    const Value root = document.dict();
    const Value dynamic = at_or_none(optimizer, "dynamic_loss_scale");
    const bool is_dynamic = dynamic.is(Kind::boolean) && dynamic.as_bool();
    copy.set(root, keys::kLossScaler, loss_scaler(copy, optimizer, config, is_dynamic));
    copy.set(root, "dynamic_loss_scale", Document::boolean(is_dynamic));
    copy.set(root, "overflow", Document::boolean(false));
    const Value clip = at_or_none(config, "gradient_clipping");
    copy.set(root, "clip_grad",
             Document::real(clip.is(Kind::real) || clip.is(Kind::integer) ? clip.as_real() : 0.0));
    copy.set(root, keys::kDsVersion, document.string(checkpoint_.facts().ds_version));
    copy.set(root, kParamGroups, copy.of(inner.at(kParamGroups)));
    copy.lay_out(root, plan_, std::move(path));
  }

  // deepspeed/runtime/fp16/loss_scaler.py. Stage 0 keeps the numbers that change; the others are
  // settings.
  static Value loss_scaler(Copy& copy, const Value& optimizer, const Value& config, bool dynamic) {
    Document& document = copy.document();
    const auto saved = [&](std::string_view key, Value otherwise) {
      const Value value = at_or_none(optimizer, key);
      return value.is(Kind::integer) || value.is(Kind::real) ? value : otherwise;
    };
    const Value fp16 = at_or_none(config, "fp16");
    const auto setting = [&](std::string_view key, Value otherwise) {
      const Value value = at_or_none(fp16, key);
      return value.is(otherwise.kind()) ? value : otherwise;
    };
    Value state = document.dict();
    copy.set(state, "cur_scale", saved("cur_scale", Document::real(1.0)));
    copy.set(state, "dynamic", Document::boolean(dynamic));
    if (dynamic) {
      const Value hysteresis = setting("hysteresis", Document::integer(2));
      copy.set(state, "cur_iter", saved("cur_iter", Document::integer(0)));
      copy.set(state, "last_overflow_iter", saved("last_overflow_iter", Document::integer(-1)));
      copy.set(state, "scale_factor", saved("scale_factor", Document::real(2.0)));
      copy.set(state, "scale_window", saved("scale_window", Document::integer(1000)));
      copy.set(state, "min_scale", setting("min_loss_scale", Document::integer(1)));
      copy.set(state, "delayed_shift", hysteresis);
      copy.set(state, "cur_hysteresis", hysteresis);
      copy.set(state, "consecutive_hysteresis",
               setting("consecutive_hysteresis", Document::boolean(false)));
      copy.set(state, "raise_error_at_min_scale", Document::boolean(true));
      copy.set(state, "dtype", document.global("torch", "float16"));
    }
    Value scaler = document.object(pickle::ObjectNode::Made::newobj,
                                   document.global("deepspeed.runtime.fp16.loss_scaler",
                                                   dynamic ? "DynamicLossScaler" : "LossScaler"),
                                   document.tuple({}));
    document.set_state(scaler, state);
    return scaler;
  }

  void add_model_file(const CheckpointFile& file) {
    const TorchArchive& archive = *file.archive;
    std::string path = file.path.filename().string();
    const Value root = archive.root();
    const bool autoep = !autoep_layers(root).is_none();
    if (stage_ != 0 && !autoep) return copy_file(file, std::move(path));
    Copy copy(archive);
    const Value changed =
        copy.dict_of(root, [&](std::string_view key, const Value& value) -> std::optional<Value> {
          // Stage 0 keeps the whole optimizer here; its states are in zero/ now.
          if (stage_ == 0 && key == keys::kOptimizer) return Value();
          if (autoep && key == keys::kUniversalCheckpointInfo)
            return expert_info(copy, root, value);
          return copy.of(value);
        });
    if (autoep && !root.find(keys::kUniversalCheckpointInfo)) {
      copy.set(changed, keys::kUniversalCheckpointInfo, expert_info(copy, root, {}));
    }
    copy.lay_out(changed, plan_, std::move(path));
  }

  static Value autoep_layers(const Value& root) {
    const Value layers = at_or_none(root, keys::kAutoEpLayers);
    return layers.is_none() ? at_or_none(root, keys::kAutoEpLayersLegacy) : layers;
  }

  // universal_checkpoint_info with what the loader has to know of the experts.
  Value expert_info(Copy& copy, const Value& root, const Value& info) const {
    Document& document = copy.document();
    const Value changed =
        info.is_mapping()
            ? copy.dict_of(
                  info, [&](std::string_view, const Value& v) { return std::optional(copy.of(v)); })
            : document.dict();
    copy.set(changed, "expert_parameter_patterns",
             document.list({document.string(stage_ == 3 ? R"(.*\.experts\.w[123]$)"
                                                        : R"(\.experts\.w[123]$)")}));
    const Value layers = autoep_layers(root);
    copy.set(changed, keys::kAutoEpLayers,
             stage_ == 3 ? copy.of(layers) : stripped_layers(copy, layers));
    return changed;
  }

  // How the experts lay on the ranks is over; DeepSpeed keeps what the model is made of.
  static Value stripped_layers(Copy& copy, const Value& layers) {
    constexpr std::array<std::string_view, 6> kKept{"moe_layer_id",      "module_path",
                                                    "expert_key_prefix", "num_experts",
                                                    "num_local_experts", "ep_size"};
    std::vector<Value> kept;
    for (const Value& layer : sequence_or_empty(layers)) {
      Value entry = copy.document().dict();
      for (const std::string_view key : kKept) {
        if (const auto value = layer.find(key)) copy.set(entry, key, copy.of(*value));
      }
      kept.push_back(entry);
    }
    return copy.document().list(std::move(kept));
  }

  void copy_file(const CheckpointFile& file, std::string path) {
    const FileId id = file.archive->file();
    const uint64_t size = inputs_[id].size();
    plan_.put(plan_.add_output(std::move(path), size), 0,
              TensorSource::stored({id, 0, size}, DType::uint8, {static_cast<int64_t>(size)}));
  }

  void add_notes() {
    const std::vector<std::string>& found = checkpoint_.notes();
    result_.notes.insert(result_.notes.begin(), found.begin(), found.end());
    if (stage_ != 3 && !checkpoint_.facts().has_universal_info) {
      note("there is no universal_checkpoint_info; none is needed, since no parameter is cut");
    }
    std::vector<std::string> lost;
    for (const Param& param : checkpoint_.params()) {
      if (param.kind != ParamKind::trainable && param.alias_of.empty()) lost.push_back(param.name);
    }
    if (!lost.empty()) {
      note(
          "DeepSpeed does not restore buffers and frozen parameters from a universal checkpoint, "
          "here " +
          some_of(lost) + ": the new run has to start with the same values, or use reshard");
    }
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

  bool has_muon() const {
    for (const CheckpointFile& file : checkpoint_.optim_files()) {
      const Value base = at_or_none(at_or_none(file.archive->root(), keys::kOptimizerStateDict),
                                    keys::kBaseOptimizerState);
      for (const Value& group : sequence_or_empty(at_or_none(base, kParamGroups))) {
        const Value flag = at_or_none(group, "use_muon");
        if (flag.is(Kind::boolean) && flag.as_bool()) return true;
      }
    }
    return false;
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
    if (groups_differ()) {
      note(
          "DeepSpeed's stage 3 gives every parameter group the hyper-parameters of the first one; "
          "here they differ, and reshard keeps them");
    }
  }

  bool groups_differ() const {
    const TorchArchive& archive = *checkpoint_.optim_files().front().archive;
    const Value inner = at_or_none(at_or_none(archive.root(), keys::kOptimizerStateDict),
                                   keys::kOptimizerStateDict);
    const auto groups = sequence_or_empty(at_or_none(inner, kParamGroups));
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
      if (!same_numbers(value, at_or_none(b, key.as_string()))) return false;
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
    const auto left = sequence_or_empty(a);
    const auto right = sequence_or_empty(b);
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
  int stage_;
  bool flat_;
  PlanBuilder plan_;
  UniversalPlan result_;
};

// The folder itself, whatever slashes it was given with.
fs::path without_slash(const fs::path& folder) {
  const fs::path absolute = fs::absolute(folder).lexically_normal();
  return absolute.has_filename() ? absolute : absolute.parent_path();
}

// What DeepSpeed looks at for the name of the universal checkpoint.
fs::path latest_file(const fs::path& output) {
  return without_slash(output).parent_path() / "latest_universal";
}

// A folder is refused here with a word on what would be lost; StagedOutput only knows full from
// empty.
bool belongs_to_universal(const fs::path& entry) {
  const std::string name = entry.filename().string();
  return name == "zero" || name.ends_with("_model_states.pt");
}

}  // namespace

UniversalPlan plan_universal(InputFiles& inputs, const Checkpoint& checkpoint,
                             const UniversalOptions& options) {
  return Planner(inputs, checkpoint).plan(options);
}

void check_universal_place(const Checkpoint& checkpoint, const fs::path& output, bool force) {
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

ExecStats run_universal(const CopyPlan& plan, const InputFiles& inputs,
                        const Checkpoint& checkpoint, const fs::path& output, Progress& progress,
                        const RunOptions& options) {
  RunOptions whole = options;
  whole.stage.whole_folder = true;
  const ExecStats stats = run_plan(plan, inputs, checkpoint, output, progress, whole);
  replace_text_file(latest_file(output), without_slash(output).filename().string(),
                    options.stage.durable);
  return stats;
}

}  // namespace dsckpt
