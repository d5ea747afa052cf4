// Stage 0: no ZeRO. One file holds the model and the whole optimizer. Under model parallelism each
// pipeline stage and tensor-parallel rank has one, beside files of layers and of experts. Source:
// deepspeed/runtime/engine.py _save_checkpoint, _save_moe_checkpoint.

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/keyed_hash.h"
#include "base/text.h"
#include "checkpoint/assemble.h"
#include "checkpoint/experts.h"
#include "checkpoint/layout.h"
#include "checkpoint/model_states.h"
#include "checkpoint/optim_states.h"
#include "checkpoint/pipeline_layers.h"
#include "checkpoint/plain_optimizer.h"
#include "checkpoint/stage_split.h"
#include "deepspeed/keys.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

using pickle::Value;
using NamedTensors = std::vector<std::pair<std::string, TensorSource>>;

// The model's tensors that are neither buffers nor other names of such.
NamedTensors params_of(const ModelStates& model) {
  const KeyedSet<std::string> aliases = model.aliases();
  NamedTensors params;
  for (const auto& [name, value] : model.module) {
    if (model.buffer_names.contains(name) || aliases.contains(name)) continue;
    params.emplace_back(
        name, in_context({.file = model.shard().display, .tensor = name},
                         [&, &tensor = value] { return model.shard().archive.tensor(tensor); }));
  }
  return params;
}

std::optional<Fields> optimizer_of(const Shard& shard) {
  const Fields fields(shard, shard.archive.root());
  if (!fields.has(keys::kOptimizer)) return std::nullopt;
  return fields.in(keys::kOptimizer);
}

// The experts of one mp rank, and the optimizers of its expert-parallel ranks.
class ExpertFiles {
 public:
  ExpertFiles(const CheckpointDraft& draft, const ModelStates& model)
      : folder_(draft.folder.path.string()), experts_(model), mp_rank_(model.shard().name.mp_rank) {
    for (const Shard& shard : draft.module_shards) {
      if (shard.name.kind == ShardName::Kind::expert && shard.name.mp_rank == mp_rank_) add(shard);
    }
    std::stable_sort(native_.begin(), native_.end(), [](const Native& a, const Native& b) {
      return std::pair(a.layer, a.number) < std::pair(b.layer, b.number);
    });
    for (const Shard& shard : draft.module_shards) {
      if (shard.name.kind == ShardName::Kind::expert_optim && shard.name.mp_rank == mp_rank_) {
        optimizers_.push_back(&shard);
      }
    }
    for (size_t rank = 0; rank < optimizers_.size(); ++rank) {
      if (optimizers_[rank]->name.dp_rank == rank) continue;
      throw InconsistentError({.file = draft.folder.path.string()},
                              ShardName{.kind = ShardName::Kind::expert_optim,
                                        .dp_rank = static_cast<uint32_t>(rank),
                                        .mp_rank = mp_rank_}
                                      .file_name() +
                                  " is missing");
    }
  }

  // By expert-parallel rank.
  const std::vector<const Shard*>& optimizers() const { return optimizers_; }
  uint32_t ep_size() const {
    return static_cast<uint32_t>(std::max<size_t>(1, optimizers_.size()));
  }
  bool is_expert(const std::string& name) const {
    return experts_.is_fused(name) || native_layers_.contains(name);
  }
  // The name that `ep_rank` itself gives to one of its parameters.
  std::string local_name(const std::string& name, uint32_t ep_rank) const {
    const auto layer = native_layers_.find(name);
    if (layer == native_layers_.end()) return name;
    const auto expert = parse_expert_name(name);
    return expert->with(expert->number - int64_t{ep_rank} * local_count(layer->second));
  }
  bool is_fused(const std::string& name) const { return experts_.is_fused(name); }

  // `params` and the experts that `ep_rank` has, each layer's behind the last of `params` of the
  // same module, as torch walks it.
  NamedTensors with_experts(const NamedTensors& params, uint32_t ep_rank) {
    std::vector<std::pair<size_t, std::pair<std::string, TensorSource>>> placed;
    for (size_t i = 0; i < params.size(); ++i) placed.emplace_back(i, params[i]);
    std::vector<std::pair<std::string_view, size_t>> sorted;
    for (size_t i = 0; i < params.size(); ++i) sorted.emplace_back(params[i].first, i);
    std::sort(sorted.begin(), sorted.end());
    const auto last_of = [&](const std::string& module) {
      std::optional<size_t> last;
      for (auto found = std::lower_bound(sorted.begin(), sorted.end(),
                                         std::pair(std::string_view(module), size_t{0}));
           found != sorted.end() && found->first.starts_with(module); ++found) {
        last = std::max(last.value_or(0), found->second);
      }
      return last.value_or(params.size());
    };
    std::map<std::string, size_t> places;  // by module
    const auto place = [&](const std::string& module, const std::string& name, TensorSource value) {
      const auto [at, is_new] = places.try_emplace(module);
      if (is_new) at->second = last_of(module);
      placed.emplace_back(at->second, std::pair(name, std::move(value)));
    };
    for (const Native& expert : native_) {
      if (expert.number / local_count(expert.layer) == ep_rank) {
        place(expert.module, expert.name, expert.value);
      }
    }
    for (const std::string& name : experts_.fused()) {
      place(name.substr(0, name.find(".experts.") + 1), name, fused(name, ep_rank));
    }
    std::stable_sort(placed.begin(), placed.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    NamedTensors all;
    for (auto& entry : placed) all.push_back(std::move(entry.second));
    return all;
  }

 private:
  struct Native {
    std::string name;
    std::string module;  // "moe.deepspeed_moe."
    uint32_t layer;
    uint32_t number;
    TensorSource value;
  };

  void add(const Shard& shard) {
    in_context(shard.where(), [&] {
      for (const auto& item : shard.archive.root().as_dict().items) {
        if (!TorchArchive::is_tensor(item.second)) continue;
        std::string name(item.first.as_string());
        in_context({.tensor = name}, [&] {
          TensorSource tensor = shard.archive.tensor(item.second);
          const std::string number = "." + std::to_string(shard.name.expert);
          const std::string fused =
              name.ends_with(number) ? name.substr(0, name.size() - number.size()) : std::string();
          if (experts_.is_fused(fused)) {
            fused_[fused].emplace(shard.name.expert, std::move(tensor));
            return;
          }
          const size_t local = name.find("deepspeed_experts" + number + ".");
          if (local == name.npos) {
            throw InconsistentError(
                {}, "is not a parameter of expert " + std::to_string(shard.name.expert));
          }
          const std::string module = name.substr(0, name.find("experts.deepspeed_experts."));
          per_layer_[shard.name.layer].insert(shard.name.expert);
          if (!native_layers_.emplace(name, shard.name.layer).second) {
            throw InconsistentError({}, "is named twice");
          }
          native_.push_back({name, module, shard.name.layer, shard.name.expert, std::move(tensor)});
        });
      }
    });
  }

  uint32_t local_count(uint32_t layer) const {
    const auto count = static_cast<uint32_t>(per_layer_.at(layer).size());
    if (count % ep_size() != 0) {
      throw InconsistentError({}, counted(count, "expert") + " of layer " + std::to_string(layer) +
                                      " are on " + counted(ep_size(), "expert-parallel rank"));
    }
    return count / ep_size();
  }

  TensorSource fused(const std::string& name, uint32_t ep_rank) {
    const auto experts = fused_.find(name);
    std::vector<TensorSource> parts;
    for (const int64_t number : experts_.experts_of(name, ep_rank)) {
      const auto expert = static_cast<uint32_t>(number);
      if (experts == fused_.end() || !experts->second.contains(expert)) {
        throw InconsistentError(
            {.file = folder_, .tensor = name},
            "the file of expert " + std::to_string(expert) + " has no such parameter");
      }
      const TensorSource& part = experts->second.at(expert);
      Shape shape = part.shape();
      shape.insert(shape.begin(), 1);
      parts.push_back(part.view(std::move(shape)));
    }
    return TensorSource::cat(0, std::move(parts));
  }

  std::string folder_;  // of the files, for messages
  Experts experts_;
  uint32_t mp_rank_;
  std::vector<const Shard*> optimizers_;
  std::map<uint32_t, std::set<uint32_t>> per_layer_;  // the experts of each layer
  std::vector<Native> native_;
  KeyedMap<std::string, uint32_t> native_layers_;  // by name
  KeyedMap<std::string, std::map<uint32_t, TensorSource>> fused_;
};

class Zero0Reader {
 public:
  explicit Zero0Reader(CheckpointDraft& draft) : draft_(draft) {
    for (const Shard& shard : draft.model_shards) {
      models_.emplace_back(shard);
      models_.back().find_tied_views();
      add_router_aliases(models_.back(), draft.inputs);
    }
  }

  void read() {
    CheckpointFacts& facts = draft_.facts;
    facts.zero_stage = 0;
    const ModelStates& first = models_.front();
    if (const auto dp = first.fields.integer_if_any(keys::kDpWorldSize); dp && *dp > 0) {
      facts.mesh.dp = static_cast<uint32_t>(*dp);
    }
    const bool has_layers = draft_.folder.has(ShardName::Kind::layer);
    if (!has_layers) open_experts();
    check_steps(draft_, {});
    for (const ModelStates& model : models_) check_same_save(model, first);
    if (has_layers) {
      for (const ModelStates& model : models_) worlds_.push_back({&model, {}, {}});
      if (are_stages_named()) {
        read_named_stages();
      } else {
        read_pipeline();
      }
    } else {
      for (const ModelStates& model : models_) read_rank(model);
    }
    if (draft_.options.optimizer_states && first.fields.has(keys::kOptimizer)) {
      draft_.wrapper_state = {&first.shard().archive, first.fields[keys::kOptimizer]};
    }
    find_whether_masters();
    for (World& world : worlds_) {
      world.facts = facts;
      if (draft_.options.optimizer_states && world.model->fields.has(keys::kOptimizer)) {
        world.wrapper_state = {&world.model->shard().archive,
                               world.model->fields[keys::kOptimizer]};
      }
    }
    keep_worlds(draft_, models_, worlds_);
    assemble(draft_, worlds_, layers_);
    for (const World& world : worlds_) world.model->note_not_tensors(draft_);
  }

 private:
  // Engines that keep no masters of their own at stage 0 (bf16 since 0.17) save the weights alone.
  void find_whether_masters() {
    for (const ModelStates& model : models_) {
      if (optimizer_of(model.shard())) return;
    }
    if (draft_.folder.has(ShardName::Kind::expert_optim)) return;
    for (const World& world : worlds_) {
      for (const OwnedParam& param : world.owned) {
        if (!is_floating_point(param.master.dtype()) || size_of(param.master.dtype()) >= 4)
          continue;
        draft_.facts.has_masters = false;
        draft_.facts.states = StatesTold::no;
        return;
      }
    }
  }

  void open_experts() {
    check_expert_files(draft_);
    std::vector<ShardFile> files = draft_.folder.of_kind(ShardName::Kind::expert);
    const std::vector<ShardFile> optim = draft_.folder.of_kind(ShardName::Kind::expert_optim);
    files.insert(files.end(), optim.begin(), optim.end());
    draft_.module_shards = open_shards(draft_.inputs, files, draft_.folder.path.parent_path());
  }

  PlainOptimizer plain(const Shard& shard, const NamedTensors& params,
                       const std::function<bool(const std::string&)>& is_expert = {}) {
    const std::optional<Fields> optimizer = optimizer_of(shard);
    PlainOptimizer found =
        read_plain_optimizer(draft_, shard, optimizer ? &*optimizer : nullptr, params, is_expert);
    draft_.facts.frozen_known = draft_.facts.frozen_known && found.frozen_known;
    if (!found.states_assigned) draft_.facts.states = StatesTold::no;
    return found;
  }

  // From an engine without an optimizer's state, whose file has param_shapes all the same.
  static bool is_told_frozen(const ModelStates& model, const std::string& name) {
    return !model.trainable_names.empty() && !model.is_trainable(name) &&
           !optimizer_of(model.shard());
  }

  // The groups of the optimizer of `ep_rank`, by the names on that rank. An optimizer without ZeRO
  // may have experts beside other parameters.
  static std::vector<ParamGroup> on_rank(std::vector<ParamGroup> groups, const ExpertFiles& experts,
                                         uint32_t ep_rank) {
    for (ParamGroup& group : groups) {
      for (std::string& name : group.params) {
        if (!experts.is_expert(name)) continue;
        group.ep_size = experts.ep_size();
        name = experts.local_name(name, ep_rank);
      }
    }
    return groups;
  }

  // A model-states file, and the experts that belong to it.
  void read_rank(const ModelStates& model) {
    ExpertFiles experts(draft_, model);
    World world{.model = &model, .owned = {}, .frozen = {}};
    const NamedTensors params = params_of(model);
    // All of them are looked at for each rank, of whose file that tells nothing.
    constexpr uint64_t kMostOfRanks = 1 << 22;
    if (experts.ep_size() > 1 && params.size() > kMostOfRanks / experts.ep_size()) {
      throw UnsupportedError({.file = model.shard().display},
                             "has " + counted(params.size(), "parameter") + ", of each of " +
                                 counted(experts.ep_size(), "expert-parallel rank"));
    }
    GroupParts groups;
    for (uint32_t ep_rank = 0; ep_rank < experts.ep_size(); ++ep_rank) {
      const Shard& shard =
          experts.optimizers().empty() ? model.shard() : *experts.optimizers()[ep_rank];
      PlainOptimizer found =
          plain(shard, experts.with_experts(params, ep_rank),
                [&](const std::string& name) { return experts.is_expert(name); });
      groups.add(on_rank(found.groups, experts, ep_rank));
      for (OwnedParam& param : found.owned) {
        const bool is_expert = experts.is_expert(param.name);
        if (ep_rank > 0 && !is_expert) continue;  // as on the first rank
        if (is_told_frozen(model, param.name)) {
          world.frozen.add(param.name, param.master);
          continue;
        }
        if (is_expert) {
          param.name = experts.local_name(param.name, ep_rank);
          param.ep_rank = ep_rank;
          param.ep_size = experts.ep_size();
        }
        world.owned.push_back(std::move(param));
      }
      for (const auto& [name, value] : found.frozen) {
        if (ep_rank == 0 || experts.is_expert(name)) world.frozen.add(name, value);
      }
    }
    world.groups = groups.take();
    draft_.facts.mesh.ep = std::max(draft_.facts.mesh.ep, experts.ep_size());
    worlds_.push_back(std::move(world));
  }

  // Engines that save the weights alone say by param_shapes which of them each stage has.
  bool are_stages_named() const {
    return std::all_of(models_.begin(), models_.end(), [](const ModelStates& model) {
      return !model.trainable_names.empty() && !optimizer_of(model.shard());
    });
  }

  void read_named_stages() {
    std::vector<std::string> names = names_in(worlds_);
    for (const ModelStates& model : models_) {
      for (const NamedShapes& group : model.param_shapes) {
        for (const auto& entry : group) names.push_back(entry.first);
      }
    }
    layers_ = open_pipeline_layers(draft_, names);
    KeyedMap<std::string, const PipelineTensor*> by_name;
    for (const PipelineLayer& layer : layers_) {
      for (const PipelineTensor& tensor : layer.tensors) by_name.emplace(tensor.name, &tensor);
    }
    for (uint32_t w = 0; w < models_.size(); ++w) {
      for (const NamedShapes& group : models_[w].param_shapes) {
        for (const auto& [name, shape] : group) {
          const TensorSource& slice = by_name.at(name)->slices[w % draft_.facts.mesh.tp];
          if (slice.shape() != shape) {
            throw InconsistentError({.file = models_[w].shard().display, .tensor = name},
                                    "is " + to_text(shape) + ", but " + to_text(slice.shape()) +
                                        " in its layer's file");
          }
          worlds_[w].owned.push_back({.name = name, .shape = shape, .master = slice});
        }
      }
    }
  }

  // No file lists the layers of a stage or the tied layers: the contents of their optimizers tell.
  void read_pipeline() {
    layers_ = open_pipeline_layers(draft_, names_in(worlds_));
    const Mesh& mesh = draft_.facts.mesh;
    std::vector<std::optional<Fields>> optimizers;
    for (uint32_t stage = 0; stage < mesh.pp; ++stage) {
      optimizers.push_back(optimizer_of(models_[stage * mesh.tp].shard()));
    }
    const StageSplit split = split_stages(draft_, optimizers, layers_, buffer_names());
    for (uint32_t w = 0; w < models_.size(); ++w) {
      NamedTensors params;
      for (const PipelineTensor* tensor : split.of_stage[w / mesh.tp]) {
        params.emplace_back(tensor->name, tensor->slices[w % mesh.tp]);
      }
      World& world = worlds_[w];
      if (!split.known) {
        // In fp32 the layers' files hold the masters.
        for (auto& [name, value] : params) {
          world.owned.push_back({.name = name, .shape = value.shape(), .master = value});
        }
        continue;
      }
      PlainOptimizer found = plain(models_[w].shard(), params);
      world.owned = std::move(found.owned);
      world.frozen = std::move(found.frozen);
      world.groups = std::move(found.groups);
    }
  }

  std::set<std::string> buffer_names() const {
    std::set<std::string> names;
    for (const ModelStates& model : models_) {
      names.insert(model.buffer_names.begin(), model.buffer_names.end());
    }
    return names;
  }

  CheckpointDraft& draft_;
  std::deque<ModelStates> models_;
  std::vector<World> worlds_;
  std::vector<PipelineLayer> layers_;
};

bool probe_zero0(CheckpointDraft& draft) {
  return draft.folder.has(ShardName::Kind::model_states);
}

void read_zero0(CheckpointDraft& draft) {
  open_model_shards(draft, ShardName::Kind::model_states);
  const Shard& shard = draft.model_shards.front();
  const Fields fields(shard, shard.archive.root());
  if (has_optimizer_elsewhere(shard)) {
    const int64_t ranks = fields.integer_if_any(keys::kDpWorldSize).value_or(1);
    throw InconsistentError({.file = draft.folder.path.string()},
                            "all zero_pp_rank_*_optim_states.pt files (" + std::to_string(ranks) +
                                " of them) are missing: " + shard.display +
                                " was saved under ZeRO and has no optimizer state of its own");
  }
  Zero0Reader(draft).read();
}

}  // namespace

const Layout kZero0{"zero-0", probe_zero0, read_zero0};

}  // namespace dsckpt
