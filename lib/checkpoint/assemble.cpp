#include "checkpoint/assemble.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "checkpoint/experts.h"
#include "checkpoint/keys.h"
#include "checkpoint/universal_info.h"

namespace dsckpt {
namespace {

// What the ranks of one pipeline stage have of a parameter: one entry a tensor-parallel rank, in it
// one an expert-parallel rank.
using StageParts = std::vector<std::vector<const OwnedParam*>>;

// A parameter, wherever it is.
struct Parts {
  std::string name;
  std::map<uint32_t, StageParts> stages;
};

// Whether two files have the same universal_checkpoint_info, but for what AutoEP says of the rank
// itself.
bool same_rules(const pickle::Value& a, const pickle::Value& b) {
  if (!a.is_mapping() || !b.is_mapping()) return same_plain_data(a, b);
  const auto holds = [](const pickle::Value& rules, const pickle::Value& others) {
    const auto& items = rules.as_dict().items;
    return std::all_of(items.begin(), items.end(), [&](const auto& item) {
      if (!item.first.is(pickle::Kind::string)) return true;
      const std::string_view key = item.first.as_string();
      if (key == keys::kAutoEpLayers || key == keys::kAutoEpLayersLegacy) return true;
      const auto other = others.find(key);
      return other && same_plain_data(item.second, *other);
    });
  };
  return holds(a, b) && holds(b, a);
}

class Assembler {
 public:
  Assembler(CheckpointDraft& draft, std::vector<World>& worlds)
      : draft_(draft),
        worlds_(worlds),
        mesh_(draft.mp_rank ? Mesh{} : draft.facts.mesh),
        info_(read_info()),
        experts_(*worlds.front().model) {}

  void run() {
    std::vector<Param> trainable;
    for (const Parts& parts : collect()) {
      in_context({.tensor = parts.name}, [&] { trainable.push_back(merged(parts)); });
    }
    // Patterns that only frozen parameters fit count as unused, as in DeepSpeed.
    draft_.unused_patterns = info_.unused_patterns();
    for (const World& each : worlds_) params_.add_buffers(*each.model);
    add_frozen();
    for (Param& param : trainable) params_.add(std::move(param));
    for (const World& each : worlds_) params_.add_aliases(*each.model, draft_.notes);
    note_layer_buffers();
    draft_.params = params_.take();
  }

 private:
  // The rules matter where slices are merged, and to whoever writes a universal checkpoint. Plain
  // stage 3 has none.
  UniversalInfo read_info() const {
    if (draft_.mp_rank) return {};  // slices stay slices
    const ModelStates& model = *worlds_.front().model;
    const bool sliced = mesh_.tp > 1;
    if (!sliced && (!draft_.optimizer_states || draft_.facts.zero_stage == 3)) return {};
    for (const World& other : worlds_) {
      const auto mine = model.fields.get(keys::kUniversalCheckpointInfo);
      const auto theirs = other.model->fields.get(keys::kUniversalCheckpointInfo);
      if (mine.has_value() == theirs.has_value() && (!mine || same_rules(*mine, *theirs))) continue;
      throw InconsistentError(other.model->fields.where(keys::kUniversalCheckpointInfo),
                              "is not as in " + model.shard().display);
    }
    if (model.fields.has(keys::kUniversalCheckpointInfo)) {
      return UniversalInfo::read(model.fields.in(keys::kUniversalCheckpointInfo));
    }
    if (sliced) {
      throw std::move(UnsupportedError(model.fields.where(keys::kUniversalCheckpointInfo),
                                       "is missing: nothing says how the slices of " +
                                           std::to_string(mesh_.tp) +
                                           " tensor-parallel ranks go together"))
          .with_hint("the training program has to put it into client_state when it saves");
    }
    draft_.facts.has_universal_info = false;
    return {};
  }

  const World& world(uint32_t stage, uint32_t tp_rank) const {
    return worlds_[stage * mesh_.tp + tp_rank];
  }

  // Every parameter of every world, in the order in which they are met. Experts get their global
  // names.
  std::vector<Parts> collect() {
    std::vector<Parts> all;
    std::unordered_map<std::string, size_t> index;
    uint32_t& ep = draft_.facts.mesh.ep;
    for (World& each : worlds_) {
      for (const OwnedParam& param : each.owned) ep = std::max(ep, param.ep_size);
      Experts::number_globally(each.owned);
    }
    for (uint32_t stage = 0; stage < mesh_.pp; ++stage) {
      for (uint32_t tp_rank = 0; tp_rank < mesh_.tp; ++tp_rank) {
        for (const OwnedParam& param : world(stage, tp_rank).owned) {
          const auto [found, is_new] = index.emplace(param.name, all.size());
          if (is_new) all.push_back({param.name, {}});
          StageParts& parts = all[found->second].stages[stage];
          parts.resize(mesh_.tp);
          if (param.ep_rank != parts[tp_rank].size()) {
            throw InconsistentError({.tensor = param.name}, "is named twice");
          }
          parts[tp_rank].push_back(&param);
        }
      }
    }
    return all;
  }

  Param merged(const Parts& parts) {
    // A stage's copy of a parameter that the program keeps equal by itself may be stale: the first
    // one counts.
    const auto& [first_stage, first] = *parts.stages.begin();
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
            {}, "has other optimizer states in pipeline stage " + std::to_string(stage->first));
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
    if (experts_.is_fused(name)) {
      if (mesh_.tp > 1) {
        throw UnsupportedError({.file = world(stage, 0).model->shard().display},
                               "belongs to AutoEP folded with tensor parallelism: the files call "
                               "different experts replicated");
      }
      param.weight = experts_.merge(name, each_of(parts.front(), master_of), "fp32");
      for (size_t i = 0; i < first.states.size(); ++i) {
        param.states.push_back(
            {first.states[i].key, experts_.merge(name, each_of(parts.front(), state_of(i, first)),
                                                 first.states[i].key)});
      }
      param.form.cat_dim = 0;
      param.form.ep_num_experts = experts_.num_experts(name);
      return param;
    }
    if (first.ep_size > 1) {
      throw UnsupportedError({.file = world(stage, 0).model->shard().display},
                             "differs between expert-parallel ranks, but is neither one of "
                             "DeepSpeed's experts nor described by ds_autoep_layers");
    }

    std::vector<const OwnedParam*> slices;
    std::vector<Shape> shapes;
    for (const auto& ranks : parts) {
      slices.push_back(ranks.front());
      shapes.push_back(ranks.front()->shape);
    }
    const UniversalInfo::Rule rule = info_.rule_for(name, shapes);
    param.form = rule.form();
    param.weight = rule.merge(each_of(slices, master_of), "fp32");
    for (size_t i = 0; i < first.states.size(); ++i) {
      param.states.push_back({first.states[i].key, rule.merge(each_of(slices, state_of(i, first)),
                                                              first.states[i].key)});
    }
    return param;
  }

  // Frozen parameters of all worlds; slices go together by the same rules.
  void add_frozen() {
    for (size_t w = 0; w < worlds_.size(); ++w) {
      for (const auto& [name, value] : worlds_[w].frozen) {
        if (params_.has(name)) continue;
        in_context({.tensor = name},
                   [&] { params_.add(frozen(name, value, static_cast<uint32_t>(w) / mesh_.tp)); });
      }
    }
  }

  Param frozen(const std::string& name, const TensorSource& value, uint32_t stage) {
    Param param{.name = name, .kind = ParamKind::frozen, .weight = value};
    if (mesh_.tp == 1) return param;
    std::vector<TensorSource> slices;
    std::vector<Shape> shapes;
    for (uint32_t tp_rank = 0; tp_rank < mesh_.tp; ++tp_rank) {
      for (const auto& [other, slice] : world(stage, tp_rank).frozen) {
        if (other != name) continue;
        slices.push_back(slice);
        shapes.push_back(slice.shape());
        break;
      }
    }
    if (slices.size() != mesh_.tp) {
      draft_.notes.push_back("frozen parameter '" + name +
                             "' is not on every tensor-parallel rank; it is taken as it is");
      return param;
    }
    const UniversalInfo::Rule rule = info_.rule_for(name, shapes);
    param.form = rule.form();
    param.weight = rule.merge(std::move(slices), "fp32");
    return param;
  }

  // A pipeline's layers have files of their own, which are not read.
  void note_layer_buffers() {
    std::vector<std::string> names;
    for (const World& each : worlds_) {
      if (!each.model->module.empty()) continue;
      names.insert(names.end(), each.model->buffer_names.begin(), each.model->buffer_names.end());
    }
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    if (names.empty()) return;
    draft_.notes.push_back(
        "buffers of the pipeline's layers, '" + names.front() +
        (names.size() > 1 ? "' and " + std::to_string(names.size() - 1) + " more, are" : "', is") +
        " left out: the layers have files of their own");
  }

  CheckpointDraft& draft_;
  std::vector<World>& worlds_;
  Mesh mesh_;
  UniversalInfo info_;
  Experts experts_;
  ParamList params_;
};

}  // namespace

void assemble(CheckpointDraft& draft, std::vector<World>& worlds) {
  Assembler(draft, worlds).run();
}

}  // namespace dsckpt
