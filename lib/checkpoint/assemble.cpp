#include "checkpoint/assemble.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/keyed_hash.h"
#include "base/text.h"
#include "checkpoint/experts.h"
#include "deepspeed/keys.h"
#include "dsckpt/error.h"
#include "format/compare_values.h"

namespace dsckpt {
namespace {

// The parts of a parameter on the ranks of one pipeline stage: one entry a tensor-parallel rank, in
// it one an expert-parallel rank.
using StageParts = std::vector<std::vector<const OwnedParam*>>;

std::vector<Shape> slice_shapes(const std::vector<TensorSource>& slices) {
  std::vector<Shape> shapes;
  for (const TensorSource& slice : slices) shapes.push_back(slice.shape());
  return shapes;
}

bool have_one_shape(const std::vector<TensorSource>& slices) {
  return std::all_of(slices.begin(), slices.end(), [&](const TensorSource& slice) {
    return slice.shape() == slices.front().shape();
  });
}

bool are_same(const InputFiles& inputs, const std::vector<TensorSource>& slices) {
  return std::all_of(slices.begin() + 1, slices.end(), [&](const TensorSource& slice) {
    return same_values(inputs, slices.front(), slice);
  });
}

UnsupportedError no_rule(const std::string& what) {
  return std::move(UnsupportedError({}, what + ", and nothing says how they go together"))
      .with_hint(
          "--tp-rule, in tools that have it, gives the rule: REGEX=cat:0, cat:1, replicated, "
          "average or "
          "sum");
}

// A parameter, wherever it is.
struct Parts {
  std::string name;
  std::map<uint32_t, StageParts> stages;
};

// True if two dicts have the same entries, but for those whose keys `skips` takes. Keys are texts.
template <typename F>
bool same_entries(const pickle::Value& a, const pickle::Value& b, const F& skips) {
  int left = kMaxPlainValues;
  const auto holds = [&](const pickle::Value& some, const pickle::Value& others) {
    const auto& items = some.as_dict().items;
    return std::all_of(items.begin(), items.end(), [&](const auto& item) {
      if (skips(item.first)) return true;
      if (!item.first.is(pickle::Kind::string)) return false;
      const auto other = others.find(item.first.as_string());
      return other && same_plain_data(item.second, *other, left);
    });
  };
  return holds(a, b) && holds(b, a);
}

// True if two files have the same universal_checkpoint_info, but for AutoEP's facts of the rank
// itself.
bool same_rules(const pickle::Value& a, const pickle::Value& b) {
  if (!a.is_mapping() || !b.is_mapping()) return same_plain_data(a, b);
  return same_entries(a, b, [](const pickle::Value& key) {
    return !key.is(pickle::Kind::string) || key.as_string() == keys::kAutoEpLayers ||
           key.as_string() == keys::kAutoEpLayersLegacy;
  });
}

// True if groups of two ranks are parts of one: they have the same hyper-parameters.
bool are_parts_of_one(const ParamGroup& a, const ParamGroup& b) {
  if (a.settings.archive == nullptr || b.settings.archive == nullptr) {
    return a.settings.archive == b.settings.archive;
  }
  const pickle::Value& of_a = a.settings.value;
  const pickle::Value& of_b = b.settings.value;
  if (!of_a.is_mapping() || !of_b.is_mapping()) return false;
  if (of_a.as_dict().items.size() != of_b.as_dict().items.size()) return false;
  return same_entries(of_a, of_b, [](const pickle::Value& key) {
    return key.is(pickle::Kind::string) && key.as_string() == "params";
  });
}

// A tensor that no optimizer owns, wherever it is.
struct Loose {
  std::string name;
  ParamKind kind;
  std::vector<TensorSource> slices;  // of the tensor-parallel ranks that have it
};

// By the names that experts have on their own ranks, those that they have in the whole model.
using ExpertNames = KeyedMap<std::string, std::vector<std::string>>;

class Assembler {
 public:
  // `is_alone`: of a world of several, which is left as it is.
  Assembler(CheckpointDraft& draft, std::vector<World>& worlds,
            const std::vector<PipelineLayer>& layers, bool is_alone)
      : draft_(draft),
        worlds_(worlds),
        layers_(layers),
        is_alone_(is_alone),
        mesh_(is_alone ? Mesh{} : draft.facts.mesh),
        info_(read_info()),
        experts_(*worlds.front().model) {}

  void run() {
    std::vector<Param> trainable;
    for (const Parts& parts : collect()) {
      in_context({.tensor = parts.name}, [&] { trainable.push_back(merged(parts)); });
    }
    check_layers();
    // Patterns that only frozen parameters fit count as unused, as in DeepSpeed.
    draft_.unused_patterns = info_.unused_patterns();
    add_loose();
    check_user_rules();
    for (Param& param : trainable) params_.add(std::move(param));
    for (const World& each : worlds_) params_.add_aliases(*each.model, draft_.notes);
    draft_.params = params_.take();
    draft_.groups = joined_groups();
  }

 private:
  // Those of all worlds, experts by the numbers that they have in the whole model. None where the
  // worlds have other ones.
  std::vector<ParamGroup> joined_groups() {
    if (is_alone_ || (worlds_.size() == 1 && experts_of_.front().empty())) {
      return std::move(worlds_.front().groups);
    }
    GroupParts parts;
    for (size_t w = 0; w < worlds_.size(); ++w) {
      std::vector<ParamGroup> groups = worlds_[w].groups;
      for (ParamGroup& group : groups) group.params = global_names(group.params, experts_of_[w]);
      parts.add(groups);
    }
    return parts.take_whole(draft_.params);
  }

  static std::vector<std::string> global_names(const std::vector<std::string>& local,
                                               const ExpertNames& experts) {
    std::vector<std::string> names;
    for (const std::string& name : local) {
      const auto found = experts.find(name);
      if (found == experts.end()) {
        names.push_back(name);
      } else {
        names.insert(names.end(), found->second.begin(), found->second.end());
      }
    }
    return names;
  }

  // The rules matter where slices are merged, and to whoever writes a universal checkpoint. Plain
  // stage 3 has none.
  UniversalInfo read_info() const {
    if (is_alone_) return UniversalInfo();  // slices stay slices
    const ModelStates& model = *worlds_.front().model;
    const bool sliced = mesh_.tp > 1;
    const bool wanted = draft_.options.optimizer_states && draft_.facts.zero_stage != 0 &&
                        draft_.facts.zero_stage != 3;
    const bool is_pipeline = mesh_.pp > 1;
    if (!sliced && !wanted && !is_pipeline && !draft_.options.cut_anew) {
      return UniversalInfo(draft_.options.tp_rules);
    }
    for (const World& other : worlds_) {
      const auto mine = model.fields.get(keys::kUniversalCheckpointInfo);
      const auto theirs = other.model->fields.get(keys::kUniversalCheckpointInfo);
      if (mine.has_value() == theirs.has_value() && (!mine || same_rules(*mine, *theirs))) continue;
      throw InconsistentError(other.model->fields.where(keys::kUniversalCheckpointInfo),
                              "is not as in " + model.shard().display);
    }
    draft_.facts.has_universal_info = model.fields.has(keys::kUniversalCheckpointInfo);
    if (!draft_.facts.has_universal_info) return UniversalInfo(draft_.options.tp_rules);
    return UniversalInfo::read(model.fields.in(keys::kUniversalCheckpointInfo),
                               draft_.options.tp_rules);
  }

  const World& world(uint32_t stage, uint32_t tp_rank) const {
    return worlds_[stage * mesh_.tp + tp_rank];
  }

  // Every parameter of every world, in the order in which they are met. Experts get their global
  // names.
  std::vector<Parts> collect() {
    std::vector<Parts> all;
    KeyedMap<std::string, size_t> index;
    uint32_t& ep = draft_.facts.mesh.ep;
    for (World& each : worlds_) {
      for (const OwnedParam& param : each.owned) ep = std::max(ep, param.ep_size);
      std::vector<std::string> local(each.owned.size());
      for (size_t i = 0; i < local.size(); ++i) {
        if (each.owned[i].ep_size > 1) local[i] = each.owned[i].name;
      }
      Experts::number_globally(each.owned);
      ExpertNames& experts = experts_of_.emplace_back();
      for (size_t i = 0; i < local.size(); ++i) {
        if (!local[i].empty()) experts[local[i]].push_back(each.owned[i].name);
      }
    }
    for (uint32_t stage = 0; stage < mesh_.pp; ++stage) {
      for (uint32_t tp_rank = 0; tp_rank < mesh_.tp; ++tp_rank) {
        for (const OwnedParam& param : world(stage, tp_rank).owned) {
          const auto [found, is_new] = index.emplace(param.name, all.size());
          if (is_new) all.push_back({param.name, {}});
          StageParts& parts = all[found->second].stages[stage];
          parts.resize(mesh_.tp);
          // Folded with tensor parallelism, each rank has some of the experts only.
          if (param.ep_rank != parts[tp_rank].size() && !experts_.is_fused(param.name)) {
            throw InconsistentError({.tensor = param.name}, "is named twice");
          }
          parts[tp_rank].push_back(&param);
        }
      }
    }
    for (const Parts& parts : all) {
      std::vector<Shape>& shapes = trained_[parts.name];
      for (const auto& ranks : parts.stages.begin()->second) {
        if (!ranks.empty()) shapes.push_back(ranks.front()->shape);
      }
    }
    return all;
  }

  Param merged(const Parts& parts) {
    // A stage's copy of a parameter that the program keeps equal by itself may be stale: the first
    // one counts.
    const uint32_t first_stage = parts.stages.begin()->first;
    const auto& first = parts.stages.begin()->second;
    if (parts.stages.size() == 1 || info_.is_pipeline_replicated(parts.name)) {
      return of_stage(parts.name, first_stage, first);
    }
    Param param = of_stage(parts.name, first_stage, first);
    for (auto stage = std::next(parts.stages.begin()); stage != parts.stages.end(); ++stage) {
      const Param other = of_stage(parts.name, stage->first, stage->second);
      const auto what = [&](const std::string& state) {
        return state + " of '" + parts.name + "' in pipeline stages " +
               std::to_string(first_stage) + " and " + std::to_string(stage->first);
      };
      param.weight = TensorSource::same({param.weight, other.weight}, what("fp32"));
      if (other.states.size() != param.states.size()) {
        throw InconsistentError(
            {}, "has different optimizer states in pipeline stage " + std::to_string(stage->first));
      }
      for (size_t i = 0; i < param.states.size(); ++i) {
        param.states[i].value = TensorSource::same({param.states[i].value, other.states[i].value},
                                                   what(param.states[i].key));
      }
    }
    return param;
  }

  static TensorSource master_of(const OwnedParam& param) { return param.master; }

  // State number `i`, which has to be the same one in all parts.
  static auto state_of(size_t i, const OwnedParam& first) {
    return [i, &first](const OwnedParam& param) {
      if (param.states.size() != first.states.size() ||
          param.states[i].key != first.states[i].key) {
        throw InconsistentError({}, "does not have the same optimizer states on all ranks");
      }
      return param.states[i].value;
    };
  }

  template <typename F>
  static std::vector<TensorSource> each_of(const std::vector<const OwnedParam*>& parts, F&& get) {
    std::vector<TensorSource> sources;
    for (const OwnedParam* part : parts) sources.push_back(get(*part));
    return sources;
  }

  Param of_stage(const std::string& name, uint32_t stage, const StageParts& parts) {
    for (uint32_t tp_rank = 0; tp_rank < parts.size(); ++tp_rank) {
      if (parts[tp_rank].empty()) {
        throw InconsistentError(
            {.file = world(stage, tp_rank).model->shard().display},
            "tensor-parallel rank " + std::to_string(tp_rank) + " has no part of it");
      }
    }
    const OwnedParam& first = *parts.front().front();
    Param param{.name = name, .weight = first.master};
    param.step = first.step;
    param.others = first.others;
    param.requires_grad = first.requires_grad;
    if (experts_.is_fused(name)) return fused(std::move(param), by_expert_rank(parts, stage));
    if (first.ep_size > 1) {
      throw UnsupportedError({.file = world(stage, 0).model->shard().display},
                             "differs between expert-parallel ranks, but is neither one of "
                             "DeepSpeed's experts nor described by ds_autoep_layers");
    }
    std::vector<const OwnedParam*> slices;
    for (const auto& ranks : parts) slices.push_back(ranks.front());
    const UniversalInfo::Rule rule = rule_for(name, each_of(slices, master_of));
    param.form = rule.form();
    if (!parse_expert_name(name) || info_.has_rule(name)) param.cut = rule.cut();
    param.weight = rule.merge(each_of(slices, master_of), "fp32");
    for (size_t i = 0; i < first.states.size(); ++i) {
      param.states.push_back({first.states[i].key, rule.merge(each_of(slices, state_of(i, first)),
                                                              first.states[i].key)});
    }
    return param;
  }

  // The parts of a fused parameter of experts, by expert-parallel rank. Where AutoEP is folded with
  // tensor parallelism, these ranks run over the tensor-parallel ones, whose files call experts
  // replicated that are none.
  std::vector<const OwnedParam*> by_expert_rank(const StageParts& parts, uint32_t stage) {
    std::map<uint32_t, const OwnedParam*> found;
    for (uint32_t tp_rank = 0; tp_rank < parts.size(); ++tp_rank) {
      for (const OwnedParam* part : parts[tp_rank]) {
        if (found.emplace(part->ep_rank, part).second) continue;
        throw InconsistentError({.file = world(stage, tp_rank).model->shard().display},
                                "is that of expert-parallel rank " + std::to_string(part->ep_rank) +
                                    ", as on another rank");
      }
    }
    std::vector<const OwnedParam*> ordered;
    for (const auto& [ep_rank, part] : found) {
      if (ep_rank != ordered.size()) {
        throw InconsistentError(
            {.file = world(stage, 0).model->shard().display},
            "expert-parallel rank " + std::to_string(ordered.size()) + " has no part of it");
      }
      ordered.push_back(part);
    }
    draft_.facts.mesh.ep = std::max(draft_.facts.mesh.ep, static_cast<uint32_t>(ordered.size()));
    return ordered;
  }

  Param fused(Param param, const std::vector<const OwnedParam*>& by_rank) {
    const OwnedParam& first = *by_rank.front();
    param.weight = experts_.merge(param.name, each_of(by_rank, master_of), "fp32");
    for (size_t i = 0; i < first.states.size(); ++i) {
      param.states.push_back(
          {first.states[i].key,
           experts_.merge(param.name, each_of(by_rank, state_of(i, first)), first.states[i].key)});
    }
    param.form.cat_dim = 0;
    param.form.ep_num_experts = experts_.num_experts(param.name);
    info_.pass_over(param.name);
    return param;
  }

  bool are_same(const std::vector<TensorSource>& slices) const {
    return dsckpt::are_same(draft_.inputs, slices);
  }

  // The rule for a parameter's slices. DeepSpeed takes parameters without a rule as cut along
  // dimension 0. This is only a guess where the program has given no rules at all. Then slices that
  // are equal are copies; but equal numbers can be of copies and of a cut alike. Programs say less
  // of frozen parameters and of experts, which DeepSpeed's converter leaves alone.
  UniversalInfo::Rule rule_for(const std::string& name, const std::vector<TensorSource>& slices,
                               bool is_frozen = false) {
    if (mesh_.tp == 1) return info_.rule_for(name, slice_shapes(slices));
    if (draft_.options.slices_apart && !info_.has_rule(name) && have_one_shape(slices)) {
      return UniversalInfo::replicated(name, slice_shapes(slices));
    }
    const bool is_expert = parse_expert_name(name).has_value();
    if (info_.has_rule(name) || (draft_.facts.has_universal_info && !is_frozen && !is_expert)) {
      UniversalInfo::Rule rule = info_.rule_for(name, slice_shapes(slices));
      check_is_cut(rule, slices);
      return rule;
    }
    if (!are_same(slices)) {
      if (draft_.facts.has_universal_info && !is_expert) {
        return info_.rule_for(name, slice_shapes(slices));
      }
      throw no_rule("the slices of the tensor-parallel ranks differ");
    }
    if (slices.front().numel() > 1 && is_constant(draft_.inputs, slices.front())) {
      throw no_rule("all elements of all tensor-parallel ranks' slices are the same number");
    }
    return UniversalInfo::replicated(name, slice_shapes(slices));
  }

  // Parts of a tensor that are equal, number by number, are none: the rule is wrong.
  void check_is_cut(const UniversalInfo::Rule& rule,
                    const std::vector<TensorSource>& slices) const {
    if (rule.shape() == slices.front().shape() || !are_same(slices) ||
        is_constant(draft_.inputs, slices.front())) {
      return;
    }
    throw InconsistentError(world(0, 0).model->fields.where(keys::kUniversalCheckpointInfo),
                            "says that the tensor-parallel ranks have parts of it, but "
                            "they all have the same")
        .with_hint("--tp-rule 'REGEX=replicated' says otherwise, in tools that have it");
  }

  // --- what no optimizer owns

  // Buffers first, as zero_to_fp32 has them.
  void add_loose() {
    std::vector<Loose> all;
    KeyedSet<std::string> seen;
    // Slices are asked for only where the name is new: every rank has the same names.
    const auto add = [&](const std::string& name, ParamKind kind, const auto& slices) {
      if (seen.insert(name).second) all.push_back({name, kind, slices()});
    };
    for (uint32_t stage = 0; stage < mesh_.pp; ++stage) {
      for (uint32_t tp_rank = 0; tp_rank < mesh_.tp; ++tp_rank) {
        const ModelStates& model = *world(stage, tp_rank).model;
        for (const auto& entry : model.module) {
          if (!model.buffer_names.contains(entry.first)) continue;
          add(entry.first, ParamKind::buffer,
              [&] { return slices_in_modules(stage, entry.first); });
        }
      }
    }
    for (uint32_t stage = 0; stage < mesh_.pp; ++stage) {
      for (uint32_t tp_rank = 0; tp_rank < mesh_.tp; ++tp_rank) {
        for (const auto& entry : world(stage, tp_rank).frozen) {
          add(entry.first, ParamKind::frozen, [&] { return frozen_slices(stage, entry.first); });
        }
      }
    }
    for (const PipelineLayer& layer : layers_) {
      for (const PipelineTensor& tensor : layer.tensors) {
        if (trained_.contains(tensor.name)) continue;
        if (tensor.stripped) {
          throw InconsistentError({.file = draft_.folder.path.string(), .tensor = tensor.name},
                                  "was stripped from the file of layer " +
                                      std::to_string(layer.index) + ", and no optimizer has it");
        }
        add(tensor.name, is_buffer(tensor.name) ? ParamKind::buffer : ParamKind::frozen,
            [&] { return tensor.slices; });
      }
    }
    std::stable_partition(all.begin(), all.end(),
                          [](const Loose& loose) { return loose.kind == ParamKind::buffer; });
    for (const Loose& loose : all) {
      in_context({.tensor = loose.name}, [&] { params_.add(whole(loose)); });
    }
  }

  bool is_buffer(const std::string& name) const {
    return std::any_of(worlds_.begin(), worlds_.end(),
                       [&](const World& each) { return each.model->buffer_names.contains(name); });
  }

  std::vector<TensorSource> slices_in_modules(uint32_t stage, const std::string& name) const {
    std::vector<TensorSource> slices;
    for (uint32_t tp_rank = 0; tp_rank < mesh_.tp; ++tp_rank) {
      const ModelStates& model = *world(stage, tp_rank).model;
      const auto found = model.by_name.find(name);
      if (found == model.by_name.end()) continue;
      in_context({.file = model.shard().display, .tensor = name},
                 [&] { slices.push_back(model.shard().archive.tensor(found->second)); });
    }
    return slices;
  }

  std::vector<TensorSource> frozen_slices(uint32_t stage, const std::string& name) const {
    std::vector<TensorSource> slices;
    for (uint32_t tp_rank = 0; tp_rank < mesh_.tp; ++tp_rank) {
      const TensorSource* slice = world(stage, tp_rank).frozen.find(name);
      if (slice != nullptr) slices.push_back(*slice);
    }
    return slices;
  }

  Param whole(const Loose& loose) {
    Param param{.name = loose.name, .kind = loose.kind, .weight = loose.slices.front()};
    if (mesh_.tp == 1) {
      if (draft_.options.cut_anew) param.cut = cut_of_lone(loose);
      return param;
    }
    const char* kind = to_string(loose.kind);
    if (loose.slices.size() != mesh_.tp) {
      draft_.notes.push_back(
          std::string(kind) + (loose.kind == ParamKind::frozen ? " parameter" : "") + " '" +
          loose.name + "' is not on every tensor-parallel rank; it is taken as it is");
      return param;
    }
    if (loose.kind == ParamKind::buffer) {
      join_buffer(draft_, info_, param, loose.slices);
      return param;
    }
    const UniversalInfo::Rule rule = rule_for(loose.name, loose.slices, true);
    param.form = rule.form();
    param.cut = rule.cut();
    param.weight = rule.merge(loose.slices, "fp32");
    return param;
  }

  // Rules are of parameters, and leave most buffers to the default for these.
  std::shared_ptr<const TpCut> cut_of_lone(const Loose& loose) {
    if (loose.kind == ParamKind::buffer && !info_.has_rule(loose.name)) {
      return std::make_shared<const TpCut>(TpCut::whole());
    }
    return info_.rule_for(loose.name, slice_shapes(loose.slices)).cut();
  }

  // --- checks

  // The layers' files are of the same model as the shards.
  void check_layers() const {
    for (const PipelineLayer& layer : layers_) {
      for (const PipelineTensor& tensor : layer.tensors) {
        const auto found = trained_.find(tensor.name);
        if (found == trained_.end() || found->second == slice_shapes(tensor.slices)) continue;
        throw InconsistentError({.file = draft_.folder.path.string(), .tensor = tensor.name},
                                "has another shape in the file of layer " +
                                    std::to_string(layer.index) + " than in param_shapes");
      }
    }
  }

  void check_user_rules() const {
    if (mesh_.tp == 1 && !draft_.options.tp_rules.empty() && !draft_.options.cut_anew) {
      throw UsageError("--tp-rule is of no use: there is one tensor-parallel rank");
    }
    const std::vector<std::string> unused = info_.unused_user_rules();
    if (!unused.empty()) throw UsageError("--tp-rule: '" + unused.front() + "' fits no parameter");
  }

  CheckpointDraft& draft_;
  std::vector<World>& worlds_;
  const std::vector<PipelineLayer> layers_;
  bool is_alone_;
  Mesh mesh_;
  UniversalInfo info_;
  Experts experts_;
  ParamList params_;
  // The parameters that optimizers own, by name: the shapes on the tensor-parallel ranks.
  KeyedMap<std::string, std::vector<Shape>> trained_;
  std::vector<ExpertNames> experts_of_;  // of each world
};

}  // namespace

void join_buffer(CheckpointDraft& draft, UniversalInfo& info, Param& param,
                 const std::vector<TensorSource>& slices) {
  const bool same = are_same(draft.inputs, slices);
  param.weight = slices.front();
  if (info.has_rule(param.name)) {
    const UniversalInfo::Rule rule = info.rule_for(param.name, slice_shapes(slices));
    if (same || rule.shape() != slices.front().shape()) {
      param.form = rule.form();
      param.cut = rule.cut();
      param.weight = rule.merge(slices, "buffer");
      return;
    }
  }
  if (!have_one_shape(slices)) {
    throw no_rule("the slices of the tensor-parallel ranks have different shapes");
  }
  param.cut = std::make_shared<const TpCut>(TpCut::whole());
  if (!same) {
    draft.notes.push_back("buffer '" + param.name +
                          "' differs between tensor-parallel ranks; the first rank's is taken");
  }
}

void GroupParts::add(const std::vector<ParamGroup>& groups) {
  if (is_first_) {
    joined_ = groups;
    for (ParamGroup& group : joined_) group.params.clear();
  }
  is_first_ = false;
  fits_ = fits_ && !groups.empty() && groups.size() == joined_.size();
  for (size_t g = 0; fits_ && g < groups.size(); ++g) {
    fits_ = are_parts_of_one(joined_[g], groups[g]);
    for (const std::string& name : groups[g].params) {
      if (seen_.insert(name).second) joined_[g].params.push_back(name);
    }
  }
}

std::vector<ParamGroup> GroupParts::take() {
  return fits_ ? std::move(joined_) : std::vector<ParamGroup>();
}

std::vector<ParamGroup> GroupParts::take_whole(std::span<const Param> params) {
  std::vector<ParamGroup> groups = take();
  KeyedSet<std::string> names;
  for (const ParamGroup& group : groups) names.insert(group.params.begin(), group.params.end());
  const bool has_all = std::all_of(params.begin(), params.end(), [&](const Param& param) {
    return !is_trained(param) || names.erase(param.name) == 1;
  });
  return has_all && names.empty() ? groups : std::vector<ParamGroup>();
}

std::vector<std::string> names_in(const std::vector<World>& worlds) {
  std::vector<std::string> names;
  for (const World& each : worlds) {
    for (const OwnedParam& param : each.owned) {
      if (param.name.find("deepspeed_experts.") == std::string::npos) names.push_back(param.name);
    }
  }
  for (const World& each : worlds) {
    names.insert(names.end(), each.model->buffer_names.begin(), each.model->buffer_names.end());
  }
  return names;
}

void assemble(CheckpointDraft& draft, std::vector<World>& worlds,
              const std::vector<PipelineLayer>& layers) {
  Assembler(draft, worlds, layers, false).run();
}

void assemble_alone(CheckpointDraft& draft, World world) {
  std::vector<World> worlds;
  worlds.push_back(std::move(world));
  Assembler(draft, worlds, {}, true).run();
}

void keep_worlds(CheckpointDraft& draft, std::deque<ModelStates>& models,
                 const std::vector<World>& worlds) {
  const bool has_experts = std::any_of(worlds.begin(), worlds.end(), [](const World& world) {
    return std::any_of(world.owned.begin(), world.owned.end(),
                       [](const OwnedParam& param) { return param.ep_size > 1; });
  });
  if (worlds.size() == 1 && !has_experts && !draft.folder.has_split_files()) return;
  draft.worlds = std::make_shared<const Worlds>(Worlds{std::move(models), worlds});
}

}  // namespace dsckpt
