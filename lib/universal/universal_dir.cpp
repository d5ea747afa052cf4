#include "universal/universal_dir.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/experts.h"
#include "checkpoint/renamed.h"
#include "deepspeed/keys.h"
#include "deepspeed/loss_scaler.h"
#include "deepspeed/run_config.h"
#include "dsckpt/error.h"
#include "format/archive_copy.h"
#include "format/checked_records.h"
#include "pickle/python_objects.h"

namespace dsckpt {
using pickle::Document;
using pickle::Kind;
using pickle::Value;
namespace {

Value text_list(Document& document, const std::vector<std::string>& texts) {
  std::vector<Value> items;
  for (const std::string& text : texts) items.push_back(document.string(text));
  return document.list(std::move(items));
}

// The same object as Python's pickle makes of the dataclass.
Value sub_param_shape(Document& document, const SubparamShape& shape) {
  std::vector<Value> dims;
  for (const SubparamShape::Dim& dim : shape.shape) {
    if (!dim.is_tuple) {
      dims.push_back(Document::integer(dim.sizes.front()));
      continue;
    }
    dims.push_back(document.tuple(integers(dim.sizes)));
  }
  Value state = document.dict();
  document.set_item(state, document.intern("patterns"), text_list(document, shape.patterns));
  document.set_item(
      state, document.intern("shape"),
      shape.shape_is_list ? document.list(std::move(dims)) : document.tuple(std::move(dims)));
  document.set_item(state, document.intern("partition_dim"),
                    Document::integer(shape.partition_dim));
  Value object =
      document.object(pickle::ObjectNode::Made::newobj,
                      document.global("deepspeed.checkpoint.universal_checkpoint", "SubparamShape"),
                      document.tuple({}));
  document.set_state(object, state);
  return object;
}

}  // namespace

void lay_out_universal_state(PlanBuilder& plan, const UniversalState& state,
                             const UniversalForm& form) {
  TensorSource value = state.value;
  if (form.vocab_rows) {
    value = value.narrow(0, 0, std::min(*form.vocab_rows, value.shape().at(0)));
  }
  TorchArchiveWriter writer;
  Document& document = writer.document();
  const Value root = document.dict();
  const auto set = [&](std::string_view key, Value item) {
    document.set_item(root, document.intern(key), item);
  };
  if (form.cat_dim) set("cat_dim", Document::integer(*form.cat_dim));
  if (form.n_sub_params) set("param_n_sub_params", Document::integer(*form.n_sub_params));
  if (form.sub_param_shape) {
    set("sub_param_shape", sub_param_shape(document, *form.sub_param_shape));
  }
  if (form.vocab_rows) set("vocab_tensor", Document::boolean(true));
  if (form.ep_num_experts) {
    set("is_expert_param", Document::boolean(true));
    set("ep_num_experts", Document::integer(*form.ep_num_experts));
  }
  Shape shape = value.shape();
  set("param", writer.tensor(writer.storage(std::move(value)), std::move(shape), 0, {},
                             state.requires_grad));
  document.set_root(root);
  std::move(writer).lay_out(plan, state.path());
}

void lay_out_flat_universal_state(PlanBuilder& plan, const UniversalState& state) {
  TorchArchiveWriter writer;
  writer.document().set_root(writer.tensor(writer.storage(state.value.flatten()),
                                           {state.value.numel()}, 0, {}, state.requires_grad));
  std::move(writer).lay_out(plan, state.path());
}

void lay_out_universal_step(PlanBuilder& plan, const std::string& param,
                            const TorchArchive& archive, const Value& step) {
  TorchArchiveWriter writer;
  writer.document().set_root(writer.import(archive, step));
  std::move(writer).lay_out(plan, "zero/" + param + "/step.pt");
}

namespace {

bool is_flat_tensor(const TorchArchive& archive, const Value& value) {
  return TorchArchive::is_tensor(value) && archive.info(value).shape.size() == 1;
}

class MetadataWriter {
 public:
  MetadataWriter(PlanBuilder& plan, const Checkpoint& checkpoint)
      : plan_(plan), checkpoint_(checkpoint), stage_(checkpoint.facts().zero_stage) {}

  void add_optimizer_state() {
    constexpr std::string_view kPath = "zero/optimizer_state.pt";
    if (checkpoint_.files().optim.empty()) return add_stage0_optimizer_state(std::string(kPath));
    const TorchArchive& archive = *checkpoint_.files().optim.front().archive;
    const Value state = archive.root().at(keys::kOptimizerStateDict);
    ArchiveCopy copy(archive);
    const Value root =
        stage_ == 3 ? stage3_state(copy, archive, state) : stage12_state(copy, state);
    copy.lay_out(root, plan_, std::string(kPath));
  }

  // Leaves out the contents of a rank's partition. Parameters are whole in the result, so paddings
  // become 0 and partition counts the number of data-parallel ranks.
  Value stage12_state(ArchiveCopy& copy, const Value& state) {
    Document& document = copy.document();
    const Value root =
        copy.dict_of(state, [&](std::string_view key, const Value& value) -> std::optional<Value> {
          if (key == keys::kBaseOptimizerState || key == keys::kParamSliceMappings ||
              key == keys::kSingleFp32Partition || key == keys::kParamGroups) {
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
    const Value base = state.find_or_none(keys::kBaseOptimizerState);
    if (!base.is(Kind::list)) {
      copy.set(root, keys::kParamGroups, copy.of(base.at(keys::kParamGroups)));
      return root;
    }
    // Elastic files have no hyper-parameters. The loader then keeps the engine's own.
    std::vector<Value> groups;
    for (size_t g = 0; g < base.as_sequence().size(); ++g) {
      Value group = document.dict();
      copy.set(group, "params", document.list({Document::integer(static_cast<int64_t>(g))}));
      groups.push_back(group);
    }
    copy.set(root, keys::kParamGroups, document.list(std::move(groups)));
    return root;
  }

  // stage3.py load_hp_checkpoint_state_from_checkpoint_dir_stage3 reads a step, the
  // hyper-parameters and the loss scale. It does not read rank 0's flat tensors, which
  // ds_to_universal.py keeps.
  static Value stage3_state(ArchiveCopy& copy, const TorchArchive& archive, const Value& state) {
    const auto without_flat = [&](const Value& states) {
      return copy.dict_of(states,
                          [&](std::string_view, const Value& value) -> std::optional<Value> {
                            if (is_flat_tensor(archive, value)) return std::nullopt;
                            return copy.of(value);
                          });
    };
    const Value root =
        copy.dict_of(state, [&](std::string_view key, const Value& value) -> std::optional<Value> {
          if (key == keys::kFp32FlatGroups || key == keys::kParamGroups) return std::nullopt;
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
    copy.set(root, keys::kParamGroups,
             copy.of(state.at(keys::kOptimizerStateDict).at(keys::kParamGroups)));
    return root;
  }

  // Stage 0 has no ZeRO state. The optimizer's own state has the same facts.
  void add_stage0_optimizer_state(std::string path) {
    const TorchArchive& archive = *checkpoint_.files().model.front().archive;
    const Value optimizer = archive.root().find_or_none(keys::kOptimizer);
    // A missing or unknown configuration gets DeepSpeed's defaults: the run that loads the folder
    // has its own anyway.
    const RunConfig& config = checkpoint_.run_config();
    const EngineConfig engine = config.engine.value_or(EngineConfig());
    if (!optimizer.is_mapping()) {
      throw UnsupportedError(
          {.file = checkpoint_.files().model.front().path.string()},
          "has no optimizer state: a universal checkpoint is for resuming a training");
    }
    const Value wrapped = optimizer.find_or_none(keys::kOptimizerStateDict);
    const Value& inner = wrapped.is_mapping() ? wrapped : optimizer;
    ArchiveCopy copy(archive);
    Document& document = copy.document();
    const Value root = document.dict();
    const bool is_dynamic = optimizer.find_or_none(keys::kDynamicLossScale).is_true();
    copy.set(root, keys::kLossScaler,
             loss_scaler(document, optimizer, engine.loss_scale, is_dynamic));
    copy.set(root, keys::kDynamicLossScale, Document::boolean(is_dynamic));
    copy.set(root, keys::kOverflow, Document::boolean(false));
    copy.set(root, keys::kClipGrad, Document::real(config.gradient_clipping.value_or(0.0)));
    copy.set(root, keys::kDsVersion, document.string(checkpoint_.facts().ds_version));
    copy.set(root, keys::kParamGroups, copy.of(inner.at(keys::kParamGroups)));
    copy.lay_out(root, plan_, std::move(path));
  }

  void add_model_file(const InputFiles& inputs, const CheckpointFile& file) {
    const TorchArchive& archive = *file.archive;
    std::string path = file.path.filename().string();
    const Value root = archive.root();
    const bool autoep = !root.find_or_none(autoep_layers_key(root)).is_none();
    if (stage_ != 0 && !autoep && checkpoint_.changed_from() == nullptr) {
      const uint64_t size = inputs[archive.file()].size();
      return put_file(plan_, plan_.add_output(std::move(path), size), archive, size);
    }
    if (checkpoint_.changed_from() != nullptr) {
      return lay_out_renamed(plan_, checkpoint_, file, std::move(path),
                             [&](std::string_view key, const Value&) -> std::optional<Value> {
                               if (stage_ == 0 && key == keys::kOptimizer) return Value();
                               return std::nullopt;
                             });
    }
    ArchiveCopy copy(archive);
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

  // Returns universal_checkpoint_info with the entries on experts that the loader needs.
  Value expert_info(ArchiveCopy& copy, const Value& root, const Value& info) const {
    Document& document = copy.document();
    constexpr std::string_view kPatterns = "expert_parameter_patterns";
    const auto kept = [&](std::string_view key, const Value& value) -> std::optional<Value> {
      if (key == kPatterns || key == keys::kAutoEpLayers) return std::nullopt;
      return copy.of(value);
    };
    const Value changed = info.is_mapping() ? copy.dict_of(info, kept) : document.dict();
    copy.set(changed, kPatterns,
             document.list({document.string(stage_ == 3 ? R"(.*\.experts\.w[123]$)"
                                                        : R"(\.experts\.w[123]$)")}));
    const Value layers = root.find_or_none(autoep_layers_key(root));
    copy.set(changed, keys::kAutoEpLayers,
             stage_ == 3 ? copy.of(layers) : stripped_layers(copy, layers));
    return changed;
  }

  // Leaves out the distribution of experts over ranks. DeepSpeed keeps the same entries on the
  // model.
  static Value stripped_layers(ArchiveCopy& copy, const Value& layers) {
    constexpr std::array<std::string_view, 6> kKept{"moe_layer_id",      "module_path",
                                                    "expert_key_prefix", "num_experts",
                                                    "num_local_experts", "ep_size"};
    std::vector<Value> kept;
    for (const Value& layer : layers.sequence_or_empty()) {
      Value entry = copy.document().dict();
      for (const std::string_view key : kKept) {
        if (const auto value = layer.find(key)) copy.set(entry, key, copy.of(*value));
      }
      kept.push_back(entry);
    }
    return copy.document().list(std::move(kept));
  }

 private:
  PlanBuilder& plan_;
  const Checkpoint& checkpoint_;
  int stage_;
};

}  // namespace

void lay_out_optimizer_state(PlanBuilder& plan, const Checkpoint& checkpoint) {
  MetadataWriter(plan, checkpoint).add_optimizer_state();
}

void lay_out_model_states(PlanBuilder& plan, const InputFiles& inputs, const Checkpoint& checkpoint,
                          const CheckpointFile& file) {
  MetadataWriter(plan, checkpoint).add_model_file(inputs, file);
}

}  // namespace dsckpt
