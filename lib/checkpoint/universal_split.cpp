#include "checkpoint/universal_split.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/keyed_hash.h"
#include "checkpoint/experts.h"
#include "deepspeed/keys.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

// The number of parameters' folders after which the search ends.
constexpr size_t kMostMissing = 1 << 16;
// No folder has a longer name.
constexpr size_t kLongestPath = 4096;

}  // namespace

SplitModel::SplitModel(const CheckpointDraft& draft, const RankModels& models,
                       const Folders& folders)
    : draft_(draft), ranks_(models.ranks()), folders_(folders) {
  for (const ModelStates& model : models.distinct()) {
    const bool is_first =
        worlds_.empty() || worlds_.back()->shard().name.mp_rank != model.shard().name.mp_rank;
    if (is_first) worlds_.push_back(&model);
  }
  num_experts_ = same_num_experts();
}

std::vector<NamedShapes> SplitModel::trained() const {
  if (draft_.facts.zero_stage == 0) return trained_at_stage_0();
  std::vector<NamedShapes> groups;
  KeyedSet<std::string> seen;
  // Each has a folder; a few bytes may speak of millions of experts.
  const size_t most = folders_.size() + kMostMissing;
  for (const ModelStates* world : worlds_) {
    groups.resize(std::max(groups.size(), world->param_shapes.size()));
    for (size_t g = 0; g < world->param_shapes.size(); ++g) {
      for (const auto& entry : world->param_shapes[g]) {
        each_whole_name(entry.first, [&](std::string name) {
          if (seen.size() > most) return false;
          if (seen.insert(name).second) groups[g].emplace_back(std::move(name), entry.second);
          return true;
        });
      }
    }
  }
  return groups;
}

void SplitModel::each_whole_name(const std::string& name,
                                 const std::function<bool(std::string)>& add) const {
  const auto expert = parse_expert_name(name);
  if (!expert) add(name);
  if (!expert || expert->number != 0) return;
  const int64_t count = name.size() > kLongestPath ? 1 : experts_below(expert->before);
  for (int64_t e = 0; e < count && add(expert->with(e)); ++e) continue;
}

// The model-states file has a number for each layer, in an order that names do not tell; where they
// differ, the folders count.
int64_t SplitModel::experts_below(const std::string& before) const {
  if (num_experts_) return *num_experts_;
  int64_t count = 0;
  for (auto at = folders_.lower_bound(before);
       at != folders_.end() && at->first.starts_with(before); ++at) {
    if (const auto expert = parse_expert_name(at->first); expert && expert->before == before) {
      count = std::max(count, expert->number + 1);
    }
  }
  return count;
}

std::optional<int64_t> SplitModel::same_num_experts() const {
  const auto counts = worlds_.front()->fields.sequence("num_experts");
  const bool are_same =
      !counts.empty() && std::all_of(counts.begin(), counts.end(), [&](const pickle::Value& count) {
        return count.is(pickle::Kind::integer) && same_plain_data(count, counts.front());
      });
  if (are_same && counts.front().as_int() > 0 && counts.front().as_int() <= kMaxExperts) {
    return counts.front().as_int();
  }
  return std::nullopt;
}

std::vector<NamedShapes> SplitModel::trained_at_stage_0() const {
  const bool any_stepped = std::any_of(folders_.begin(), folders_.end(),
                                       [](const auto& entry) { return entry.second.size() > 1; });
  NamedShapes all;
  for (const auto& [name, files] : folders_) {
    if (any_stepped && files.size() == 1) continue;
    all.emplace_back(name, Shape{});
  }
  return {std::move(all)};
}

Shape SplitModel::whole_shape(const std::string& name, const Shape& local, const Shape& stored,
                              bool is_vocabulary) const {
  if (draft_.facts.zero_stage == 0) return stored;
  const bool is_flat = stored.size() == 1 && local.size() != 1;
  if (is_flat || (local.empty() && stored == Shape{1})) return local;
  const bool cut =
      is_sliced() ||
      !worlds_.front()
           ->fields.sequence(autoep_layers_key(worlds_.front()->shard().archive.root()))
           .empty();
  bool fits = stored.size() == local.size();
  for (size_t d = 0; fits && d < local.size(); ++d) {
    const bool may_differ = cut || (is_vocabulary && d == 0);
    fits = may_differ ? stored[d] >= local[d] || (is_vocabulary && d == 0) : stored[d] == local[d];
  }
  if (!fits) {
    throw InconsistentError({.tensor = name}, "has shape " + to_text(stored) + ", a rank has " +
                                                  to_text(local) + " of it");
  }
  return stored;
}

FrozenParams SplitModel::frozen_of(const ModelStates& world) const {
  if (draft_.facts.zero_stage != 3) return whole_frozen(world);
  std::vector<RankModel> of_world;
  for (const RankModel& rank : ranks_) {
    if (rank.shard->name.mp_rank == world.shard().name.mp_rank) of_world.push_back(rank);
  }
  return cut_frozen(of_world);
}

void SplitModel::add_params(CheckpointDraft& draft, std::vector<OwnedParam> owned,
                            const std::map<std::string, UniversalForm>& forms,
                            const std::function<TensorSource(const Shard&)>& value_of) const {
  ParamList params;
  KeyedSet<std::string> trained;
  KeyedSet<std::string> aliases;
  std::set<std::string> buffers;
  for (const OwnedParam& param : owned) trained.insert(param.name);
  for (const ModelStates* world : worlds_) {
    aliases.merge(world->aliases());
    buffers.insert(world->buffer_names.begin(), world->buffer_names.end());
    params.add_buffers(*world);
  }
  const auto is_new = [&](const std::string& name) {
    return !trained.contains(name) && !aliases.contains(name) && !params.has(name);
  };
  // Slices, and the layers of a pipeline, have their whole values as copies in the folder alone.
  std::vector<std::string> lost;
  for (const ModelStates* world : worlds_) {
    for (const auto& [name, value] : frozen_of(*world)) {
      if (!is_new(name)) continue;
      if (!is_sliced()) {
        params.add({.name = name, .kind = ParamKind::frozen, .weight = value});
      } else if (!folders_.contains(name)) {
        lost.push_back(name);
      }
    }
  }
  for (const auto& [name, files] : folders_) {
    if (!is_new(name)) continue;
    const auto weight = files.find("fp32");
    if (weight == files.end()) {
      throw InconsistentError({.tensor = name}, "has states in the folder, but no fp32.pt");
    }
    params.add({.name = name,
                .kind = buffers.contains(name) ? ParamKind::buffer : ParamKind::frozen,
                .weight = value_of(*weight->second)});
  }
  for (const std::string& name : lost) {
    draft.notes.push_back("frozen parameter '" + name +
                          "' is cut, and not in the folder; left out");
  }
  for (OwnedParam& param : owned) {
    const auto form = forms.find(param.name);
    params.add({.name = param.name,
                .weight = param.master,
                .states = std::move(param.states),
                .step = param.step,
                .others = std::move(param.others),
                .form = form == forms.end() ? UniversalForm{} : form->second,
                .requires_grad = param.requires_grad});
  }
  for (const ModelStates* world : worlds_) params.add_aliases(*world, draft.notes);
  draft.params = params.take();
}

}  // namespace dsckpt
