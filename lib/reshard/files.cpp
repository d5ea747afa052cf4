#include "reshard/files.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <sstream>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "checkpoint/shard.h"
#include "deepspeed/config_pickle.h"
#include "deepspeed/keys.h"
#include "deepspeed/loss_scaler.h"
#include "deepspeed/shard_name.h"
#include "dsckpt/error.h"
#include "format/archive_copy.h"
#include "pickle/python_objects.h"
#include "reshard/layout.h"

namespace dsckpt {
using pickle::Document;
using pickle::Kind;
using pickle::ObjectNode;
using pickle::Value;
namespace {

// Of the model-states files: what a run from weights starts with at 0 and at None, and what is of
// its model. The rest is of DeepSpeed's schedules and of the training program.
constexpr std::array kCounters{keys::kGlobalSteps, keys::kSkippedSteps, keys::kGlobalSamples};
// What is made for the new run, but for `module`, which is always there.
constexpr std::array kMade{
    keys::kOptimizer,    keys::kParamShapes,          keys::kFrozenParamShapes,
    keys::kSharedParams, keys::kFrozenParamFragments, keys::kDpWorldSize,
    keys::kDsConfig};
constexpr std::array kUnstarted{keys::kDataSampler, keys::kRandomLtd};
constexpr std::array kOfTheModel{
    keys::kBufferNames, keys::kSparseTensorNames,       keys::kMpWorldSize,
    keys::kDsVersion,   keys::kUniversalCheckpointInfo, keys::kCheckpointParallelDimensions};

bool contains(std::span<const std::string_view> keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

// utils/groups.py: the name of the experts' groups, before the number of ranks.
constexpr std::string_view kExpertGroup = "ep_size_";

class Writer {
  using Group = ReshardLayout::Group;
  using Run = ReshardLayout::Run;

 public:
  Writer(PlanBuilder& plan, const Checkpoint& source, const ReshardTarget& target,
         const std::string& folder, std::vector<std::string>& notes)
      : plan_(plan),
        source_(source),
        target_(target),
        layout_(LayoutSource(source), target),
        folder_(folder),
        notes_(notes),
        wrapper_(source.wrapper_state()),
        mesh_{target.dp, target.ep, target.data_before_experts},
        has_tuple_shapes_(has_tuple_shapes(source)),
        same_wrapper_(!source.facts().universal &&
                      source.facts().optimizer_wrapper == target.wrapper) {}

  std::vector<ReshardedGroup> lay_out() {
    const uint32_t model_files = target_.stage == 3 ? target_.dp : 1;
    lay_out_files(model_files, [&](uint32_t rank) { return model_file_of(rank); });
    if (target_.stage != 0) {
      lay_out_files(target_.dp, [&](uint32_t rank) { return optim_file_of(rank); });
    }
    if (starts()) {
      note_start();
    } else {
      note_client_state();
    }
    return summary();
  }

 private:
  struct File {
    std::string path;
    TorchArchiveWriter::Written archive;
  };

  // Adds the files of ranks 0 to `ranks` - 1 to the plan in their order, made several at a time; if
  // several cannot be made, the error is that of the first.
  template <typename F>
  void lay_out_files(uint32_t ranks, F&& make) {
    constexpr uint32_t kAtOnce = 32;  // that are in memory
    for (uint32_t begin = 0; begin < ranks; begin += kAtOnce) {
      const uint32_t count = std::min(kAtOnce, ranks - begin);
      std::vector<File> files(count);
      std::vector<std::exception_ptr> failures(count);
      tbb::parallel_for(uint32_t{0}, count, [&](uint32_t i) {
        try {
          files[i] = make(begin + i);
        } catch (...) {
          failures[i] = std::current_exception();
        }
      });
      for (uint32_t i = 0; i < count; ++i) {
        if (failures[i]) std::rethrow_exception(failures[i]);
        TorchArchiveWriter::lay_out(std::move(files[i].archive), plan_, std::move(files[i].path));
      }
    }
  }

  bool is_zero12() const { return target_.stage == 1 || target_.stage == 2; }
  bool starts() const { return source_.facts().from_weights; }
  bool is_bf16_optimizer() const { return target_.wrapper == EngineWrapper::bf16_optimizer; }
  std::string path_of(const ShardName& name) const { return folder_ + "/" + name.file_name(); }
  Where source_where() const { return {.file = source_.tag_folder().string()}; }

  // A copy of what the optimizer keeps once, with a storage of its own: steps that shared one would
  // be counted together.
  static Value whole(ArchiveCopy& copy, const ShardValue& value) {
    if (TorchArchive::is_tensor(value.value)) {
      return copy.writer().tensor(value.archive->tensor(value.value));
    }
    return copy.of(*value.archive, value.value);
  }

  // torch.Size; DeepSpeed saves models with experts through a helper that makes tuples of them.
  Value size_value(Document& document, const Shape& shape) const {
    if (!has_tuple_shapes_) return torch_size(document, shape);
    std::vector<Value> dims;
    for (const int64_t dim : shape) dims.push_back(Document::integer(dim));
    return document.tuple(std::move(dims));
  }

  static bool has_tuple_shapes(const Checkpoint& source) {
    const Value shapes =
        source.model_files().front().archive->root().find_or_none(keys::kParamShapes);
    for (const Value& group : shapes.sequence_or_empty()) {
      if (!group.is_mapping() || group.as_dict().items.empty()) continue;
      return group.as_dict().items.front().second.is(Kind::tuple);
    }
    return false;
  }

  static Value integers(Document& document, const std::vector<uint64_t>& values) {
    std::vector<Value> items;
    for (const uint64_t value : values) {
      items.push_back(Document::integer(static_cast<int64_t>(value)));
    }
    return document.list(std::move(items));
  }

  Value config_value(ArchiveCopy& copy) const {
    if (target_.ds_config) return pickle_of(copy.document(), *target_.ds_config);
    const TorchArchive& archive = *source_.model_files().front().archive;
    return copy.of(archive, archive.root().find_or_none(keys::kDsConfig));
  }

  // The states of all runs and the hyper-parameters: torch.optim.Optimizer.state_dict.
  Value optimizer_dict(ArchiveCopy& copy, uint32_t rank) const {
    Document& document = copy.document();
    const Value dict = document.dict();
    const Value states = document.dict();
    std::vector<std::vector<Value>> numbers(layout_.groups().size());
    for (size_t i = 0; i < layout_.runs().size(); ++i) {
      const Value number = Document::integer(static_cast<int64_t>(i));
      numbers[layout_.runs()[i].group].push_back(number);
      const Value state = states_of(copy, layout_.runs()[i], rank);
      if (!state.as_dict().items.empty()) document.set_item(states, number, state);
    }
    copy.set(dict, "state", states);
    std::vector<Value> groups;
    for (size_t g = 0; g < layout_.groups().size(); ++g) {
      groups.push_back(settings_of(copy, layout_.groups()[g], numbers[g]));
    }
    copy.set(dict, keys::kParamGroups, document.list(std::move(groups)));
    return dict;
  }

  Value settings_of(ArchiveCopy& copy, const Group& group,
                    const std::vector<Value>& numbers) const {
    const ShardValue& settings = group.settings;
    const Value params = copy.document().list(numbers);
    if (settings.archive == nullptr) {
      throw UnsupportedError(source_where(), "has no hyper-parameters");
    }
    const Value dict = copy.dict_of(
        *settings.archive, settings.value, [&](std::string_view key, const Value& value) {
          if (key == "params") return std::optional(params);
          if (group.experts && key == "name" && value.is(Kind::string) &&
              value.as_string().starts_with(kExpertGroup)) {
            return std::optional(
                copy.document().string(std::string(kExpertGroup) + std::to_string(group.mesh.ep)));
          }
          return std::optional(copy.of(*settings.archive, value));
        });
    if (!settings.value.find("params")) copy.set(dict, "params", params);
    return dict;
  }

  Value states_of(ArchiveCopy& copy, const Run& run, uint32_t rank) const {
    const Param& first = *layout_.params_of(run, rank).front();
    const Value dict = copy.document().dict();
    if (first.step.archive != nullptr) copy.set(dict, "step", whole(copy, first.step));
    for (size_t i = 0; i < first.states.size(); ++i) {
      copy.set(dict, first.states[i].key, copy.writer().tensor(layout_.state_of(run, rank, i)));
    }
    for (const WholeState& other : first.others) {
      copy.set(dict, other.key, whole(copy, other.value));
    }
    return dict;
  }

  static TensorSource master_of(const Param& param) { return param.weight; }

  Value masters(ArchiveCopy& copy, TensorSource source) const {
    Shape shape = source.shape();
    TorchArchiveWriter& writer = copy.writer();
    return writer.tensor(writer.storage(std::move(source)), std::move(shape), 0, {}, true);
  }

  // A key of what the wrapper saved, as it is.
  void carry(ArchiveCopy& copy, const Value& dict, std::string_view key) const {
    if (const auto value = wrapper_.value.find(key)) {
      copy.set(dict, key, copy.of(*wrapper_.archive, *value));
    }
  }

  void carry_or(ArchiveCopy& copy, const Value& dict, std::string_view key, bool otherwise) const {
    if (wrapper_.value.find(key)) return carry(copy, dict, key);
    copy.set(dict, key, Document::boolean(otherwise));
  }

  void set_loss_scale(ArchiveCopy& copy, const Value& dict) const {
    Document& document = copy.document();
    const Value saved = wrapper_.value.find_or_none(keys::kLossScaler);
    if (!target_.new_loss_scaler && !saved.is_none()) {
      carry(copy, dict, keys::kLossScaler);
      carry_or(copy, dict, keys::kDynamicLossScale,
               saved.is(Kind::object) && saved.as_object().state.find_or_none("dynamic").is_true());
      carry_or(copy, dict, keys::kOverflow, false);
      return;
    }
    const Value scaler = new_or_saved_scaler(document);
    copy.set(dict, keys::kLossScaler, scaler);
    copy.set(dict, keys::kDynamicLossScale,
             Document::boolean(scaler.as_object().state.at("dynamic").is_true()));
    copy.set(dict, keys::kOverflow, Document::boolean(false));
  }

  // A scaler with the numbers that the old wrapper has, or that a run of the new precision starts
  // with.
  Value new_or_saved_scaler(Document& document) const {
    const LossScaleConfig& config = target_.engine.loss_scale;
    if (target_.new_loss_scaler) {
      return target_.precision == Precision::fp16 ? initial_loss_scaler(document, config)
                                                  : loss_scaler(document, {}, config, false);
    }
    const Value saved = wrapper_.value.find_or_none(keys::kLossScaler);
    const Value numbers = saved.is(Kind::object) ? saved.as_object().state : wrapper_.value;
    const bool dynamic = numbers.find_or_none(keys::kDynamicLossScale).is_true() ||
                         numbers.find_or_none("dynamic").is_true();
    return loss_scaler(document, numbers, config, dynamic);
  }

  void set_clip_grad(ArchiveCopy& copy, const Value& dict) const {
    if (wrapper_.value.find(keys::kClipGrad)) return carry(copy, dict, keys::kClipGrad);
    copy.set(dict, keys::kClipGrad, Document::real(target_.engine.gradient_clipping));
  }

  // zero/config.py ZeroStageEnum.
  Value zero_stage(Document& document) const {
    return document.object(ObjectNode::Made::reduce,
                           document.global("deepspeed.runtime.zero.config", "ZeroStageEnum"),
                           document.tuple({Document::integer(target_.stage)}));
  }

  // Stages 1 and 2 load nothing without it.
  void set_ds_version(ArchiveCopy& copy, const Value& dict) const {
    if (wrapper_.value.find(keys::kDsVersion)) return carry(copy, dict, keys::kDsVersion);
    const std::string& version = source_.facts().ds_version;
    if (!version.empty()) {
      copy.set(dict, keys::kDsVersion, copy.document().string(version));
    } else if (is_zero12()) {
      throw UnsupportedError(source_where(),
                             "does not say which ds_version wrote it; stages 1 and 2 do not load "
                             "without");
    }
  }

  // --- optimizer-states files

  File optim_file_of(uint32_t rank) const {
    const TorchArchive& archive = *wrapper_.archive;
    ArchiveCopy copy(archive);
    const Value root = copy.document().dict();
    copy.set(root, keys::kOptimizerStateDict,
             target_.stage == 3 ? zero3_state(copy, rank) : zero12_state(copy, rank));
    copy.set(root, keys::kDsConfig, config_value(copy));
    set_ds_version(copy, root);
    return {path_of({.kind = ShardName::Kind::optim_states,
                     .dp_rank = rank,
                     .mp_rank = target_.mp_rank,
                     .bf16 = target_.precision == Precision::bf16}),
            copy.write(root)};
  }

  // stage_1_and_2.py and bf16_optimizer.py state_dict, key by key in their order.
  Value zero12_state(ArchiveCopy& copy, uint32_t rank) const {
    Document& document = copy.document();
    const Value dict = document.dict();
    if (!is_bf16_optimizer()) set_loss_scale(copy, dict);
    set_clip_grad(copy, dict);
    if (target_.elastic) {
      std::vector<Value> states;
      for (const Run& run : layout_.runs()) states.push_back(states_of(copy, run, rank));
      copy.set(dict, keys::kBaseOptimizerState, document.list(std::move(states)));
      carry(copy, dict, keys::kBaseOptimizerStateStep);
    } else {
      copy.set(dict, keys::kBaseOptimizerState, optimizer_dict(copy, rank));
    }
    std::vector<Value> flat;
    std::vector<uint64_t> paddings;
    std::vector<Value> alignments;
    std::vector<Value> mappings;
    std::vector<uint64_t> counts;
    for (const Group& group : layout_.groups()) {
      flat.push_back(masters(copy, layout_.partition(group, rank, is_bf16_optimizer(), master_of)));
      paddings.push_back(padding_of(group, rank));
      counts.push_back(group.mesh.edp());
      alignments.push_back(integers(document, group.flat.paddings));
      mappings.push_back(mapping_of(document, group, rank));
    }
    copy.set(dict, keys::kSingleFp32Partition, document.list(std::move(flat)));
    if (!is_bf16_optimizer()) copy.set(dict, keys::kZeroStage, zero_stage(document));
    copy.set(dict, keys::kGroupPaddings, integers(document, paddings));
    if (!is_bf16_optimizer()) {
      copy.set(dict, keys::kParamAlignmentPaddings, document.list(std::move(alignments)));
    }
    copy.set(dict, keys::kPartitionCount, integers(document, counts));
    set_ds_version(copy, dict);
    copy.set(dict, keys::kParamSliceMappings, document.list(std::move(mappings)));
    carry_unknown(copy, dict);
    return dict;
  }

  // BF16_Optimizer books all padding on the last rank.
  uint64_t padding_of(const Group& group, uint32_t rank) const {
    const FlatLayout& flat = group.flat;
    if (!is_bf16_optimizer()) return flat.partition - layout_.real_part(group, rank);
    const uint64_t ranks = group.mesh.edp();
    return group.mesh.edp_rank(rank) + 1 == ranks ? flat.partition * ranks - flat.used : 0;
  }

  // Parameter -> fragment_address: where it lies in the rank's partition.
  Value mapping_of(Document& document, const Group& group, uint32_t rank) const {
    const Value mapping = ordered_dict(document);
    for (const ReshardLayout::Slice& slice : layout_.slices(group, rank)) {
      const Value state = document.dict();
      document.set_item(state, document.intern("numel"),
                        Document::integer(static_cast<int64_t>(slice.numel)));
      document.set_item(state, document.intern("start"),
                        Document::integer(static_cast<int64_t>(slice.start)));
      const Value address =
          document.object(ObjectNode::Made::newobj,
                          document.global("deepspeed.utils.tensor_fragment", "fragment_address"),
                          document.tuple({}));
      document.set_state(address, state);
      document.set_item(mapping, document.intern(slice.param->name), address);
    }
    return mapping;
  }

  // stage3.py _rigid_state_dict, key by key in its order.
  Value zero3_state(ArchiveCopy& copy, uint32_t rank) const {
    Document& document = copy.document();
    const Value dict = document.dict();
    copy.set(dict, keys::kZeroStage, zero_stage(document));
    set_loss_scale(copy, dict);
    copy.set(dict, keys::kPartitionCount, Document::integer(target_.dp));
    if (wrapper_.value.find(keys::kZeroPartitionGroups)) {
      copy.set(dict, keys::kZeroPartitionGroups, partition_groups(copy, rank));
    }
    copy.set(dict, keys::kOptimizerStateDict, optimizer_dict(copy, rank));
    std::vector<Value> flat;
    for (const Run& run : layout_.runs())
      flat.push_back(masters(copy, layout_.of_run(run, rank, master_of)));
    copy.set(dict, keys::kFp32FlatGroups, document.list(std::move(flat)));
    carry_unknown(copy, dict);
    return dict;
  }

  // stage3.py _zero3_partition_group_metadata.
  Value partition_groups(ArchiveCopy& copy, uint32_t rank) const {
    Document& document = copy.document();
    std::vector<Value> all;
    for (const Run& run : layout_.runs()) {
      const Group& group = layout_.groups()[run.group];
      const ExpertMesh& mesh = group.mesh;
      std::vector<uint64_t> ranks;
      for (uint32_t i = 0; i < mesh.edp(); ++i) {
        ranks.push_back(mesh.rank_of(mesh.ep_rank(rank), i));
      }
      const auto one = [&](const std::string& text) {
        return document.list({document.string(text)});
      };
      const Value entry = document.dict();
      copy.set(entry, "sub_group", Document::integer(static_cast<int64_t>(all.size())));
      copy.set(entry, "partition_count", Document::integer(mesh.edp()));
      copy.set(entry, "partition_rank", Document::integer(mesh.edp_rank(rank)));
      copy.set(entry, "partition_ranks", integers(document, ranks));
      copy.set(entry, "families", one(group.experts ? "autoep_expert" : "replicated"));
      copy.set(
          entry, "group_names",
          one(group.experts ? std::string(kExpertGroup) + std::to_string(mesh.ep) : "replicated"));
      all.push_back(entry);
    }
    return document.list(std::move(all));
  }

  // What a later DeepSpeed may keep besides.
  void carry_unknown(ArchiveCopy& copy, const Value& dict) const {
    if (!same_wrapper_ || starts()) return;
    constexpr std::array kOurs{keys::kLossScaler,
                               keys::kDynamicLossScale,
                               keys::kOverflow,
                               keys::kClipGrad,
                               keys::kBaseOptimizerState,
                               keys::kBaseOptimizerStateStep,
                               keys::kSingleFp32Partition,
                               keys::kZeroStage,
                               keys::kGroupPaddings,
                               keys::kParamAlignmentPaddings,
                               keys::kPartitionCount,
                               keys::kZeroPartitionGroups,
                               keys::kDsVersion,
                               keys::kParamSliceMappings,
                               keys::kOptimizerStateDict,
                               keys::kFp32FlatGroups};
    for (const auto& [key, value] : wrapper_.value.as_dict().items) {
      if (!key.is(Kind::string) || contains(kOurs, key.as_string())) continue;
      copy.set(dict, key.as_string(), copy.of(*wrapper_.archive, value));
    }
  }

  // --- model-states files

  const CheckpointFile& model_file(uint32_t rank) const {
    const auto& files = source_.model_files();
    return files[target_.stage == 3 && rank < files.size() ? rank : 0];
  }

  File model_file_of(uint32_t rank) const {
    const TorchArchive& archive = *model_file(rank).archive;
    ArchiveCopy copy(archive);
    StorageOf storages;
    const Value root = archive.root();
    const Value dict =
        copy.dict_of(root, [&](std::string_view key, const Value& value) -> std::optional<Value> {
          return model_value(copy, storages, key, value, rank);
        });
    // Old releases did not write all of them.
    for (const std::string_view key : kMade) {
      if (!root.find(key)) copy.set(dict, key, *model_value(copy, storages, key, {}, rank));
    }
    ShardName name{.kind = ShardName::Kind::model_states, .mp_rank = target_.mp_rank};
    if (target_.stage == 3) {
      name.kind = ShardName::Kind::zero_model_states;
      name.dp_rank = rank;
    }
    return {path_of(name), copy.write(dict)};
  }

  // The storages of `module`'s parameters by name, which frozen_param_fragments share.
  using StorageOf = std::unordered_map<std::string, TorchArchiveWriter::StorageId>;

  // nullopt for what is left out.
  std::optional<Value> model_value(ArchiveCopy& copy, StorageOf& storages, std::string_view key,
                                   const Value& value, uint32_t rank) const {
    Document& document = copy.document();
    if (key == keys::kModule) return module_value(copy, storages, value);
    if (key == keys::kOptimizer) return model_optimizer(copy, value);
    if (key == keys::kParamShapes) return param_shapes(document);
    if (key == keys::kFrozenParamShapes) return frozen_shapes(copy, value);
    if (key == keys::kFrozenParamFragments) return frozen_fragments(copy, storages, value, rank);
    if (key == keys::kSharedParams) return shared_params(copy, value, rank);
    if (key == keys::kDpWorldSize) return Document::integer(target_.dp);
    if (key == keys::kDsConfig) return config_value(copy);
    if (key == keys::kAutoEpLayers || key == keys::kAutoEpLayersLegacy) {
      return autoep_layers_value(copy, value, mesh_, rank);
    }
    if (key == keys::kUniversalCheckpointInfo && value.is_mapping()) {
      return universal_info(copy, value, rank);
    }
    return starts() ? start_value(copy, key, value) : copy.of(value);
  }

  // What is left of the checkpoint that a run starts like: what its model is, not how far it came.
  static std::optional<Value> start_value(ArchiveCopy& copy, std::string_view key,
                                          const Value& value) {
    if (contains(kCounters, key)) return Document::integer(0);
    if (contains(kUnstarted, key)) return Value();
    if (key == keys::kLrScheduler) {
      return value.is_none() ? Value() : first_lr_scheduler(copy.document());
    }
    if (contains(kOfTheModel, key)) return copy.of(value);
    return std::nullopt;
  }

  // It repeats where the experts are.
  Value universal_info(ArchiveCopy& copy, const Value& info, uint32_t rank) const {
    if (!info.find(keys::kAutoEpLayers)) return copy.of(info);
    return copy.dict_of(info, [&](std::string_view key, const Value& value) {
      return std::optional(key == keys::kAutoEpLayers
                               ? autoep_layers_value(copy, value, mesh_, rank)
                               : copy.of(value));
    });
  }

  // None under ZeRO, unless a client_state had the key.
  Value model_optimizer(ArchiveCopy& copy, const Value& saved) const {
    if (target_.stage == 0) return stage0_optimizer(copy);
    return source_.facts().zero_stage == 0 || starts() ? Value() : copy.of(saved);
  }

  bool from_stage3() const { return source_.facts().zero_stage == 3; }

  Value module_value(ArchiveCopy& copy, StorageOf& storages, const Value& module) const {
    const bool to_stage3 = target_.stage == 3;
    if (from_stage3() == to_stage3 && !target_.param_dtype && !starts()) return copy.of(module);
    Document& document = copy.document();
    const Value dict = ordered_dict(document);
    for (const auto& [key, value] : module.as_dict().items) {
      const Value name = copy.of(key);
      document.set_item(dict, name, module_entry(copy, storages, key, value));
    }
    if (module.is(Kind::object) && module.as_object().has_state) {
      document.set_state(dict, copy.of(module.as_object().state));
    }
    return dict;
  }

  Value module_entry(ArchiveCopy& copy, StorageOf& storages, const Value& key,
                     const Value& value) const {
    const std::string name = key.is(Kind::string) ? std::string(key.as_string()) : "";
    const Param* param = source_.find(name);
    if (!TorchArchive::is_tensor(value)) return copy.of(value);
    if (param == nullptr) {
      throw UnsupportedError({.file = source_where().file, .tensor = name},
                             "is a parameter of the model whose values are in no file");
    }
    TorchArchiveWriter& writer = copy.writer();
    if (owner_of(*param).kind == ParamKind::buffer) {
      return starts() ? writer.tensor(param->weight) : copy.of(value);
    }
    const DType saved = copy.from().info(value).dtype;
    const DType dtype = target_.param_dtype.value_or(saved);
    if (target_.stage == 3) return writer.tensor(TensorSource::zeros(dtype, {0}));
    const Param& owner = owner_of(*param);
    const auto [found, is_new] = storages.try_emplace(owner.name, 0);
    if (is_new) found->second = writer.storage(owner.weight.to(dtype));
    return writer.tensor(found->second, owner.weight.shape());
  }

  const Param& owner_of(const Param& param) const {
    return param.alias_of.empty() ? param : *source_.find(param.alias_of);
  }

  Value param_shapes(Document& document) const {
    if (target_.stage == 0) return {};
    std::vector<Value> all;
    for (const Run& run : layout_.runs()) {
      const Value shapes = ordered_dict(document);
      for (const Param* param : layout_.params_of(run, 0)) {
        document.set_item(shapes, document.intern(param->name),
                          size_value(document, param->weight.shape()));
      }
      all.push_back(shapes);
    }
    return document.list(std::move(all));
  }

  // Stages 2 and 3 keep frozen parameters apart; None if the run chose not to save them, which
  // loads where there are none, too.
  bool has_frozen_entries(const Value& saved) const {
    return target_.stage >= 2 && (!layout_.frozen().empty() || saved.is_mapping());
  }

  template <typename F>
  Value of_frozen(ArchiveCopy& copy, F&& make) const {
    Document& document = copy.document();
    const Value dict = ordered_dict(document);
    for (const Param* param : layout_.frozen()) {
      const Value name = document.intern(param->name);
      document.set_item(dict, name, make(*param));
    }
    return dict;
  }

  Value frozen_shapes(ArchiveCopy& copy, const Value& saved) const {
    if (!has_frozen_entries(saved)) return {};
    return of_frozen(copy, [&](const Param& param) {
      return size_value(copy.document(), param.weight.shape());
    });
  }

  Value frozen_fragments(ArchiveCopy& copy, const StorageOf& storages, const Value& saved,
                         uint32_t rank) const {
    if (!has_frozen_entries(saved)) return {};
    const bool as_saved = target_.stage == 2 && source_.facts().zero_stage == 2 && !starts();
    if (as_saved && !target_.param_dtype && saved.is_mapping() &&
        saved.as_dict().items.size() == layout_.frozen().size()) {
      return copy.of(saved);
    }
    const Value module = copy.from().root().find_or_none(keys::kModule);
    return of_frozen(copy, [&](const Param& param) {
      TorchArchiveWriter& writer = copy.writer();
      const DType stored =
          param.kind == ParamKind::trainable ? target_.saved_param_dtype : param.weight.dtype();
      const DType dtype = target_.param_dtype.value_or(stored);
      const TensorSource value = param.weight.to(dtype);
      if (target_.stage == 3) {
        return writer.tensor(ReshardLayout::piece(value, rank, target_.dp));
      }
      const auto found = storages.find(param.name);
      if (found != storages.end()) return writer.tensor(found->second, param.weight.shape());
      const Value in_module = module.find_or_none(param.name);
      return in_module.is_none() || starts() ? writer.tensor(value) : copy.of(in_module);
    });
  }

  // Only the first rank says them.
  Value shared_params(ArchiveCopy& copy, const Value& saved, uint32_t rank) const {
    if (target_.stage == 0) return {};
    Document& document = copy.document();
    const Value dict = document.dict();
    if (rank > 0) return dict;
    if (saved.is_mapping()) return copy.of(saved);
    for (const Param& param : source_.params()) {
      if (param.alias_of.empty()) continue;
      copy.set(dict, param.name, document.string(param.alias_of));
    }
    return dict;
  }

  // --- stage 0

  Value stage0_optimizer(ArchiveCopy& copy) const {
    Document& document = copy.document();
    if (same_wrapper_ && source_.facts().zero_stage == 0 && !target_.new_loss_scaler) {
      return copy.of(*wrapper_.archive, wrapper_.value);
    }
    if (target_.wrapper == EngineWrapper::plain) return optimizer_dict(copy, 0);
    const Value dict = document.dict();
    const bool fused = target_.wrapper == EngineWrapper::fp16_fused;
    if (!fused || target_.precision == Precision::fp16) set_scale_numbers(copy, dict);
    copy.set(dict, keys::kOptimizerStateDict, optimizer_dict(copy, 0));
    std::vector<Value> groups(layout_.groups().size());
    std::vector<std::vector<Value>> lists(layout_.groups().size());
    for (const Run& run : layout_.runs()) {
      const Value tensor = masters(copy, layout_.of_run(run, 0, master_of));
      groups[run.group] = tensor;
      lists[run.group].push_back(tensor);
    }
    if (!fused) {
      for (size_t g = 0; g < groups.size(); ++g) groups[g] = document.list(std::move(lists[g]));
    }
    copy.set(dict, fused ? keys::kFp32GroupsFlat : keys::kFp32Groups,
             document.list(std::move(groups)));
    if (fused) set_clip_grad(copy, dict);
    return dict;
  }

  // fp16/unfused_optimizer.py state_dict: of the loss scaler only what changes.
  void set_scale_numbers(ArchiveCopy& copy, const Value& dict) const {
    Document& document = copy.document();
    const Value state = new_or_saved_scaler(document).as_object().state;
    const bool dynamic = state.at("dynamic").is_true();
    copy.set(dict, keys::kDynamicLossScale, Document::boolean(dynamic));
    copy.set(dict, "cur_scale", state.at("cur_scale"));
    const auto steps = Document::integer(source_.facts().global_steps.value_or(0));
    copy.set(dict, "cur_iter", dynamic ? state.at("cur_iter") : steps);
    if (!dynamic) return;
    for (const std::string_view key : {"last_overflow_iter", "scale_factor", "scale_window"}) {
      copy.set(dict, key, state.at(key));
    }
  }

  // --- the rest

  // Stage 3 has a model-states file a rank, and a program may have put another client_state into
  // each.
  void note_client_state() {
    const auto& files = source_.model_files();
    const size_t kept = target_.stage == 3 ? target_.dp : 1;
    if (files.size() == 1 || kept == files.size()) return;
    std::vector<std::string> keys;
    const Value first = files.front().archive->root();
    for (const auto& [key, value] : first.as_dict().items) {
      if (!key.is(Kind::string)) continue;
      const std::string_view name = key.as_string();
      if (name == keys::kModule || name == keys::kSharedParams ||
          name == keys::kFrozenParamFragments || name == keys::kParamShapes ||
          name == keys::kAutoEpLayers || name == keys::kAutoEpLayersLegacy ||
          name == keys::kUniversalCheckpointInfo) {
        continue;
      }
      const std::vector<uint32_t> sums = files.front().archive->checksums(value);
      const bool differs = std::any_of(files.begin() + 1, files.end(), [&](const auto& file) {
        const auto other = file.archive->root().find(name);
        return !other || !same_plain_data(value, *other) || file.archive->checksums(*other) != sums;
      });
      if (differs) keys.push_back(std::string(name));
    }
    add_buffers_that_differ(keys);
    if (keys.empty()) return;
    std::string names;
    for (const std::string& key : keys) names += (names.empty() ? "'" : ", '") + key + "'";
    notes_.push_back(kept < files.size()
                         ? "what the ranks saved each for itself is kept of the first " +
                               std::to_string(kept) + " only: " + names
                         : "what the ranks saved each for itself is rank 0's on the new ranks: " +
                               names);
  }

  void note_start() {
    notes_.push_back(
        "the new run starts at step 0, with an optimizer that took no step and a schedule that "
        "begins; hyper-parameters are those of " +
        source_.model_files().front().path.string() + learning_rates());
    std::string names;
    for (const auto& [key, value] : model_file(0).archive->root().as_dict().items) {
      if (!key.is(Kind::string) || is_written(key.as_string()) || value.is_none()) continue;
      names += (names.empty() ? "'" : ", '") + std::string(key.as_string()) + "'";
    }
    if (!names.empty()) notes_.push_back("what the program saved is left out: " + names);
  }

  static bool is_written(std::string_view key) {
    return key == keys::kModule || contains(kMade, key) || contains(kCounters, key) ||
           contains(kUnstarted, key) || contains(kOfTheModel, key) || key == keys::kLrScheduler;
  }

  std::string learning_rates() const {
    std::string text;
    for (const Group& group : layout_.groups()) {
      const Value rate = group.settings.value.find_or_none("lr");
      if (!rate.is(Kind::real) && !rate.is(Kind::integer)) continue;
      std::ostringstream number;
      number << rate.as_real();
      text += (text.empty() ? ", where the learning rate is " : ", ") + number.str();
    }
    return text;
  }

  void add_buffers_that_differ(std::vector<std::string>& names) const {
    const auto& files = source_.model_files();
    const auto module = [](const CheckpointFile& file) {
      return file.archive->root().find_or_none(keys::kModule);
    };
    for (const Param& param : source_.params()) {
      if (param.kind != ParamKind::buffer) continue;
      const auto sums = [&](const CheckpointFile& file) {
        return file.archive->checksums(module(file).find_or_none(param.name));
      };
      const std::vector<uint32_t> first = sums(files.front());
      const bool differs = std::any_of(files.begin() + 1, files.end(),
                                       [&](const auto& file) { return sums(file) != first; });
      if (differs) names.push_back(param.name);
    }
  }

  std::vector<ReshardedGroup> summary() const {
    std::vector<ReshardedGroup> all;
    for (size_t g = 0; g < layout_.groups().size(); ++g) {
      const Group& from = layout_.groups()[g];
      ReshardedGroup group{.mp_rank = target_.mp_rank,
                           .ep = from.mesh.ep,
                           .params = from.params().size(),
                           .numel = 0,
                           .partition = from.flat.partition};
      for (const Param* param : from.params()) {
        const auto numel = static_cast<uint64_t>(param->weight.numel());
        group.numel += numel;
        if (target_.stage == 3) group.partition += piece_of(numel, from.mesh.edp());
      }
      for (const Run& run : layout_.runs()) {
        if (target_.stage == 3 && run.group == g) ++group.sub_groups;
      }
      all.push_back(group);
    }
    return all;
  }

  PlanBuilder& plan_;
  const Checkpoint& source_;
  const ReshardTarget& target_;
  ReshardLayout layout_;
  const std::string& folder_;
  std::vector<std::string>& notes_;
  ShardValue wrapper_;
  ExpertMesh mesh_;  // of the experts that ds_autoep_layers describes
  bool has_tuple_shapes_;
  bool same_wrapper_;  // whether the old files are of the target's optimizer wrapper
};

}  // namespace

std::vector<ReshardedGroup> lay_out_shards(PlanBuilder& plan, const Checkpoint& source,
                                           const ReshardTarget& target, const std::string& folder,
                                           std::vector<std::string>& notes) {
  return Writer(plan, source, target, folder, notes).lay_out();
}

}  // namespace dsckpt
