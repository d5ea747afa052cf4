#include "checkpoint/universal_worlds.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/keyed_hash.h"
#include "base/text.h"
#include "checkpoint/assemble.h"
#include "checkpoint/experts.h"
#include "checkpoint/frozen_params.h"
#include "checkpoint/universal_info.h"
#include "checkpoint/zero_world.h"
#include "deepspeed/keys.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

class WorldsFinder {
 public:
  WorldsFinder(CheckpointDraft& draft, RankModels& models, const GroupsOfRank& groups_of)
      : draft_(draft), models_(models), groups_of_(groups_of), mesh_(draft.facts.mesh) {
    for (const ModelStates& model : models.distinct()) {
      const uint32_t mp_rank = model.shard().name.mp_rank;
      if (ranks_.empty() || ranks_.back()->shard().name.mp_rank != mp_rank)
        ranks_.push_back(&model);
    }
    for (const ModelStates* rank : ranks_) shapes_.push_back(shapes_on(*rank));
  }

  void run() {
    if (draft_.facts.zero_stage == 0 || has_experts() || !is_told()) return;
    find_groups();
    UniversalInfo info = read_info();
    for (Param& param : draft_.params) {
      if (param.alias_of.empty()) in_context({.tensor = param.name}, [&] { cut(param, info); });
    }
    check_user_rules(info);
    KeyedMap<std::string_view, const Param*> owners;
    for (const Param& param : draft_.params) owners.emplace(param.name, &param);
    for (Param& param : draft_.params) {
      const auto owner = owners.find(param.alias_of);
      if (owner == owners.end()) continue;
      param.weight = owner->second->weight;
      param.states = owner->second->states;
      param.cut = owner->second->cut;
    }
    keep();
  }

 private:
  using Shapes = KeyedMap<std::string, Shape>;

  bool has_experts() const {
    const Fields& fields = ranks_.front()->fields;
    return !fields.sequence("num_experts").empty() ||
           fields.has(autoep_layers_key(ranks_.front()->shard().archive.root()));
  }

  // Those of everything that the rank's file has in its model.
  static Shapes shapes_on(const ModelStates& rank) {
    Shapes shapes;
    for (const NamedShapes& group : rank.param_shapes) shapes.insert(group.begin(), group.end());
    shapes.insert(rank.frozen_param_shapes.begin(), rank.frozen_param_shapes.end());
    for (const auto& [name, value] : rank.module) {
      const TorchArchive& archive = rank.shard().archive;
      in_context({.file = rank.shard().display, .tensor = name}, [&, &key = name, &tensor = value] {
        shapes.emplace(key, archive.info(tensor).shape);
      });
    }
    return shapes;
  }

  // True if the files are those of as many stages and tensor-parallel ranks as they say.
  bool is_told() const {
    if (ranks_.size() != size_t{mesh_.pp} * mesh_.tp) return false;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i]->trainable_names != ranks_[i - i % mesh_.tp]->trainable_names) return false;
    }
    return true;
  }

  UniversalInfo read_info() {
    const Fields& fields = ranks_.front()->fields;
    draft_.facts.has_universal_info = fields.has(keys::kUniversalCheckpointInfo);
    if (!draft_.facts.has_universal_info) return UniversalInfo(draft_.options.tp_rules);
    return UniversalInfo::read(fields.in(keys::kUniversalCheckpointInfo), draft_.options.tp_rules);
  }

  void check_user_rules(const UniversalInfo& info) const {
    const std::vector<std::string> unused = info.unused_user_rules();
    if (!unused.empty()) throw UsageError("--tp-rule: '" + unused.front() + "' fits no parameter");
  }

  // By tensor-parallel rank, in the first stage that has it; none if not all ranks have it.
  std::vector<Shape> slices_of(const std::string& name) const {
    for (uint32_t stage = 0; stage < mesh_.pp; ++stage) {
      std::vector<Shape> slices;
      for (uint32_t tp_rank = 0; tp_rank < mesh_.tp; ++tp_rank) {
        const Shapes& shapes = shapes_[stage * mesh_.tp + tp_rank];
        const auto found = shapes.find(name);
        if (found != shapes.end()) slices.push_back(found->second);
      }
      if (slices.size() == mesh_.tp) return slices;
      if (!slices.empty()) return {};
    }
    return {};
  }

  bool is_on_some_rank(const std::string& name) const {
    return std::any_of(shapes_.begin(), shapes_.end(),
                       [&](const Shapes& shapes) { return shapes.contains(name); });
  }

  void cut(Param& param, UniversalInfo& info) const {
    const std::vector<Shape> slices = slices_of(param.name);
    const bool has_rule = info.has_rule(param.name);
    const bool is_buffer = param.kind == ParamKind::buffer;
    if (slices.empty()) {
      // The files of a pipeline have no shapes of buffers. Without a rule nothing joins slices of
      // one.
      const bool is_whole = !has_rule && is_buffer && !is_on_some_rank(param.name);
      if (is_whole) param.cut = std::make_shared<const TpCut>(TpCut::whole());
      return;
    }
    if (is_buffer && mesh_.tp > 1) return join_buffer(draft_, info, param, copies_of(param.name));
    const bool are_whole = std::all_of(slices.begin(), slices.end(), [&](const Shape& slice) {
      return slice == param.weight.shape();
    });
    // Rules are of parameters, and leave most buffers to the default for these.
    if (!has_rule && are_whole && (mesh_.tp > 1 || is_buffer)) {
      param.cut = std::make_shared<const TpCut>(TpCut::whole());
      return;
    }
    const UniversalInfo::Rule rule = info.rule_for(param.name, slices);
    fill_up(param, rule);
    if (mesh_.tp == 1) {
      if (draft_.options.cut_anew) param.cut = rule.cut();
      return;
    }
    if (param.weight.shape() == rule.shape()) {
      param.cut = rule.cut();
    } else if (has_rule) {
      throw InconsistentError({}, "has shape " + to_text(param.weight.shape()) +
                                      ", and the slices of the tensor-parallel ranks make " +
                                      to_text(rule.shape()) + " by the rules of " +
                                      ranks_.front()->shard().display);
    }
  }

  // The ranks' parts of a buffer.
  std::vector<TensorSource> copies_of(const std::string& name) const {
    std::vector<TensorSource> copies;
    for (uint32_t tp_rank = 0; tp_rank < mesh_.tp; ++tp_rank) {
      const ModelStates& rank = *ranks_[tp_rank];
      const auto found = rank.by_name.find(name);
      if (found == rank.by_name.end()) {
        throw InconsistentError({.file = rank.shard().display}, "has no buffer of this name");
      }
      copies.push_back(rank.shard().archive.tensor(found->second));
    }
    return copies;
  }

  // Adds the rows that only pad a vocabulary, which the files of parameters have not.
  static void fill_up(Param& param, const UniversalInfo::Rule& rule) {
    const Shape& stored = param.weight.shape();
    const Shape& shape = rule.shape();
    if (!param.form.vocab_rows || stored.empty() || stored.size() != shape.size()) return;
    if (const auto& rows = rule.form().vocab_rows; rows && stored[0] != *rows) {
      throw InconsistentError(
          {}, "has " + counted(stored[0], "row") + " of a vocabulary of " + std::to_string(*rows));
    }
    if (stored[0] >= shape[0] || !std::equal(stored.begin() + 1, stored.end(), shape.begin() + 1)) {
      return;
    }
    Shape padding = shape;
    padding[0] -= stored[0];
    const auto filled = [&](const TensorSource& value) {
      return TensorSource::cat(0, {value, TensorSource::zeros(value.dtype(), padding)});
    };
    for (ParamState& state : param.states) state.value = filled(state.value);
    param.weight = filled(param.weight);
  }

  // None if the ranks have other ones, or not all parameters are in one.
  void find_groups() {
    GroupParts parts;
    for (const ModelStates* rank : ranks_) parts.add(groups_of_(*rank));
    draft_.groups = parts.take_whole(draft_.params);
  }

  void keep() {
    KeyedMap<std::string_view, const Param*> by_name;
    for (const Param& param : draft_.params) by_name.emplace(param.name, &param);
    std::vector<World> worlds;
    for (size_t mp_rank = 0; mp_rank < ranks_.size(); ++mp_rank) {
      World& world = worlds.emplace_back(
          World{ranks_[mp_rank], {}, frozen_of(*ranks_[mp_rank]), groups_of_(*ranks_[mp_rank])});
      world.facts = draft_.facts;
      world.wrapper_state = draft_.wrapper_state;
      for (const NamedShapes& group : ranks_[mp_rank]->param_shapes) {
        for (const auto& [name, shape] : group) {
          const auto whole = by_name.find(name);
          if (whole == by_name.end()) continue;
          auto owned = slice(*whole->second, shape, static_cast<uint32_t>(mp_rank) % mesh_.tp);
          if (owned) {
            world.owned.push_back(std::move(*owned));
          } else if (world.uncut.empty()) {
            world.uncut = name;
          }
        }
      }
    }
    keep_worlds(draft_, models_.distinct(), worlds);
  }

  FrozenParams frozen_of(const ModelStates& rank) const {
    if (draft_.facts.zero_stage != 3) return whole_frozen(rank);
    std::vector<RankModel> of_world;
    for (const RankModel& each : models_.ranks()) {
      if (each.shard->name.mp_rank == rank.shard().name.mp_rank) of_world.push_back(each);
    }
    return cut_frozen(of_world);
  }

  // nullopt if no rule cuts it.
  std::optional<OwnedParam> slice(const Param& param, const Shape& shape, uint32_t tp_rank) const {
    std::optional<TpCut> cut = TpCut::whole();
    if (mesh_.tp > 1) {
      if (param.cut == nullptr || !(param.cut->is_whole() || param.cut->joins())) return {};
      cut = param.cut->for_ranks(mesh_.tp);
    }
    const auto part = [&](const TensorSource& value) {
      return cut->slice(value, tp_rank).view(shape);
    };
    OwnedParam owned{.name = param.name,
                     .shape = shape,
                     .master = part(param.weight),
                     .requires_grad = param.requires_grad,
                     .step = param.step,
                     .others = param.others};
    for (const ParamState& state : param.states) {
      owned.states.push_back({state.key, part(state.value)});
    }
    return owned;
  }

  CheckpointDraft& draft_;
  RankModels& models_;
  const GroupsOfRank& groups_of_;
  const Mesh mesh_;
  std::vector<const ModelStates*> ranks_;  // the first of each mp rank
  std::vector<Shapes> shapes_;             // likewise
};

}  // namespace

void find_worlds(CheckpointDraft& draft, RankModels& models, const GroupsOfRank& groups_of) {
  const std::vector<Param> whole = draft.params;
  const std::vector<std::string> notes = draft.notes;
  try {
    WorldsFinder(draft, models, groups_of).run();
  } catch (const Error& error) {
    const bool is_defect =
        error.kind() == ErrorKind::inconsistent || error.kind() == ErrorKind::corrupt;
    if (!is_defect && error.kind() != ErrorKind::unsupported) throw;
    draft.params = whole;  // some may be cut
    draft.notes = notes;
    if (is_defect) {
      draft.notes.push_back(std::string(error.what()) +
                            "; whole parameters do not need the ranks' shares");
      draft.doubts.push_back(error);
    }
    draft.worlds = std::make_shared<const Worlds>(Worlds{{}, {}, std::current_exception()});
  }
}

}  // namespace dsckpt
