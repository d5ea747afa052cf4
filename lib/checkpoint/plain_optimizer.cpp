// Stage 0: an optimizer without names.
#include "checkpoint/plain_optimizer.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/kernels.h"
#include "base/keyed_hash.h"
#include "base/text.h"
#include "checkpoint/flat_states.h"
#include "checkpoint/order_match.h"
#include "deepspeed/keys.h"
#include "dsckpt/error.h"
#include "format/compare_values.h"
#include "format/meta_tensor.h"
#include "format/read_tensor.h"

namespace dsckpt {
namespace {

using pickle::Value;

// States of the optimizers of one bit (runtime/fp16/onebit): what a rank still owes to the others
// since it sent signs only. One rank's is saved, in a length that depends on their number.
bool is_of_the_rank(std::string_view state) {
  return state == "worker_error" || state == "server_error";
}

class PlainReader {
 public:
  PlainReader(CheckpointDraft& draft, const Shard& shard,
              const std::vector<std::pair<std::string, TensorSource>>& params,
              const std::function<bool(const std::string&)>& is_expert)
      : draft_(draft), shard_(shard), archive_(shard.archive), is_expert_(is_expert) {
    for (const auto& [name, stored] : params) candidates_.push_back({name, stored, std::nullopt});
  }

  PlainOptimizer read(const Fields* optimizer) {
    if (optimizer != nullptr) {
      find_masters(*optimizer);
      if (draft_.options.optimizer_states) find_states(*optimizer);
    } else {
      frozen_known_ = false;  // unless param_shapes says it, which zero0.cpp looks at
      for (Candidate& candidate : candidates_) candidate.master = candidate.stored;
    }
    PlainOptimizer result{.owned = {},
                          .frozen = {},
                          .groups = std::move(groups_),
                          .frozen_known = frozen_known_,
                          .states_assigned = states_assigned_};
    for (Candidate& candidate : candidates_) {
      if (!candidate.master) {
        result.frozen.add(candidate.name, candidate.stored);
        continue;
      }
      result.owned.push_back({.name = candidate.name,
                              .shape = candidate.master->shape(),
                              .master = *candidate.master,
                              .states = std::move(candidate.states),
                              .step = candidate.step,
                              .others = std::move(candidate.others)});
    }
    return result;
  }

 private:
  void find_masters(const Fields& optimizer) {
    if (optimizer.has(keys::kFp32Groups)) {
      draft_.facts.optimizer_wrapper = EngineWrapper::fp16_unfused;
      match_groups(optimizer);
    } else if (optimizer.has(keys::kFp32GroupsFlat)) {
      draft_.facts.optimizer_wrapper = EngineWrapper::fp16_fused;
      match_flat_groups(optimizer);
    } else {
      take_module_as_is(optimizer);
    }
  }

  // A parameter of the module, and its fp32 master once that is found.
  struct Candidate {
    std::string name;
    TensorSource stored;
    std::optional<TensorSource> master;
    // The optimizer's number for it, and, if that is of a flat group, where it begins there.
    std::optional<size_t> index = {};
    std::optional<int64_t> flat_begin = {};
    int64_t flat_numel = 0;
    std::vector<ParamState> states = {};
    ShardValue step = {};
    std::vector<WholeState> others = {};
  };

  // Without masters the run was in fp32, and the module is the truth. The optimizer's state has no
  // names; its shapes tell which parameters it owns, unless it owns only some of a shape.
  void take_module_as_is(const Fields& optimizer) {
    std::map<Shape, size_t> owned;
    std::map<Shape, size_t> present;
    size_t owned_count = 0;
    for (const Value& group : optimizer.sequence(keys::kParamGroups)) {
      const Fields fields(shard_, group, optimizer.where(keys::kParamGroups).member);
      owned_count += fields.sequence("params").size();
    }
    if (const auto states = optimizer.get("state"); states && states->is_mapping()) {
      for (const auto& [index, state] : states->as_dict().items) {
        if (const auto shape = state_shape(state)) ++owned[*shape];
      }
    }
    for (const Candidate& candidate : candidates_) ++present[candidate.stored.shape()];

    const bool all = owned_count == candidates_.size();
    const bool told_by_shape =
        std::all_of(owned.begin(), owned.end(),
                    [&](const auto& entry) {
                      const auto found = present.find(entry.first);
                      return found != present.end() && found->second == entry.second;
                    }) &&
        std::accumulate(owned.begin(), owned.end(), size_t{0}, [](size_t sum, const auto& entry) {
          return sum + entry.second;
        }) == owned_count;
    frozen_known_ = all || told_by_shape;
    for (Candidate& candidate : candidates_) {
      if (all || !told_by_shape || owned.contains(candidate.stored.shape())) {
        candidate.master = candidate.stored;
      }
    }
  }

  // The shape of a parameter's state: that of its first tensor with dimensions; of its first one
  // but
  // the step count if none has any.
  std::optional<Shape> state_shape(const Value& state) const {
    std::optional<Shape> found;
    if (!state.is_mapping()) return found;
    in_context(shard_.where(), [&] { check_count(state.as_dict()); });
    for (const auto& [key, value] : state.as_dict().items) {
      if (key.is(pickle::Kind::string) &&
          (key.as_string() == "step" || is_of_the_rank(key.as_string()))) {
        continue;
      }
      std::optional<Shape> shape = shape_with_or_without_values(archive_, value);
      if (!shape) continue;
      if (!shape->empty()) return shape;
      found = std::move(shape);
    }
    return found;
  }

  // The states of the parameters whose masters have been found, by the number of the master;
  // without masters by order.
  void find_states(const Fields& optimizer) {
    const bool wrapped = optimizer.has(keys::kOptimizerStateDict);
    const Fields inner = wrapped ? optimizer.in(keys::kOptimizerStateDict) : optimizer;
    const auto all = inner.get("state");
    if (!all || !all->is_mapping()) return;
    if (!wrapped && !number_by_order(inner, *all)) {
      states_assigned_ = all->as_dict().items.empty();
      return;
    }
    find_groups(inner);
    for (Candidate& candidate : candidates_) {
      if (!candidate.index) continue;
      const Value* states = all->as_dict().find(static_cast<int64_t>(*candidate.index));
      if (states == nullptr || !states->is_mapping()) continue;
      const Where where = inner.where("state[" + std::to_string(*candidate.index) + "]");
      in_context({.file = where.file, .member = where.member, .tensor = candidate.name},
                 [&] { add_states(candidate, *states); });
    }
  }

  // Left empty if the optimizer lists a parameter that is not in the file.
  void find_groups(const Fields& optimizer) {
    std::map<size_t, std::vector<const Candidate*>> numbered;
    for (const Candidate& candidate : candidates_) {
      if (candidate.index && candidate.master) numbered[*candidate.index].push_back(&candidate);
    }
    for (auto& entry : numbered) {
      std::sort(entry.second.begin(), entry.second.end(), [](const auto* a, const auto* b) {
        return a->flat_begin.value_or(0) < b->flat_begin.value_or(0);
      });
    }
    std::vector<ParamGroup> groups;
    for (const Value& settings : optimizer.sequence(keys::kParamGroups)) {
      ParamGroup group{.params = {}, .settings = {&archive_, settings}};
      for (const Value& number : settings.find_or_none("params").sequence_or_empty()) {
        const auto found = numbered.find(static_cast<size_t>(number.as_int()));
        if (found == numbered.end()) return;
        for (const Candidate* candidate : found->second) group.params.push_back(candidate->name);
        numbered.erase(found);  // an optimizer lists each once
      }
      groups.push_back(std::move(group));
    }
    groups_ = std::move(groups);
  }

  void add_states(Candidate& candidate, const Value& states) {
    const Shape& shape = candidate.master->shape();
    check_count(states.as_dict());
    for (const auto& [name, value] : states.as_dict().items) {
      if (!name.is(pickle::Kind::string) || is_meta_tensor(value)) continue;
      const std::string key(name.as_string());
      if (key == "step") {
        if (value.is_none()) continue;
        if (!archive_.scalar(value)) throw CorruptError({}, "'step' is not a number");
        candidate.step = {&archive_, value};
        continue;
      }
      if (is_of_the_rank(key)) {
        if (!noted_.insert(key).second) continue;
        note_once(draft_.notes, "the optimizer's '" + key +
                                    "' is one rank's error of compression, not a state of a "
                                    "parameter: DeepSpeed drops it when it loads");
        continue;
      }
      if (!TorchArchive::is_tensor(value) ||
          (archive_.info(value).shape.empty() && !shape.empty())) {
        candidate.others.push_back({key, {&archive_, value}});
        continue;
      }
      const TensorSource whole = archive_.tensor(value);
      if (!candidate.flat_begin) {
        if (whole.shape() != shape) {
          throw InconsistentError({}, "'" + key + "' has shape " + to_text(whole.shape()) +
                                          ", the parameter " + to_text(shape));
        }
        candidate.states.push_back({key, whole});
        continue;
      }
      if (whole.numel() != candidate.flat_numel) {
        throw InconsistentError({}, "'" + key + "' has " + counted(whole.numel(), "element") +
                                        ", the group " + std::to_string(candidate.flat_numel));
      }
      candidate.states.push_back(
          {key, whole.flatten().narrow(0, *candidate.flat_begin, numel(shape)).view(shape)});
    }
  }

  // In an fp32 run nothing but the order says which states are whose. Every group has its
  // parameters in the model's order, as torch's own users have to keep it. Where shapes leave more
  // than one way, nobody can tell. A parameter without a number is frozen.
  bool number_by_order(const Fields& optimizer, const Value& states) {
    const auto is_of_experts = [](const Value& group) {
      return group.find_or_none("moe").is_true();
    };
    const auto settings = optimizer.sequence(keys::kParamGroups);
    const bool are_marked =
        is_expert_ && std::any_of(settings.begin(), settings.end(), is_of_experts);
    // Marked groups have all experts and nothing else: no other shape is like theirs.
    const auto told_apart = [&](Shape shape, bool is_of_expert) {
      constexpr int64_t kMark = -1;
      if (are_marked && is_of_expert) shape.push_back(kMark);
      return shape;
    };
    std::vector<std::vector<OwnedIndex>> groups;
    size_t owned_count = 0;
    for (const Value& group : optimizer.sequence(keys::kParamGroups)) {
      const Fields fields(shard_, group, optimizer.where(keys::kParamGroups).member);
      owned_count += fields.sequence("params").size();
      if (owned_count > candidates_.size()) return false;
      std::vector<OwnedIndex> indices;
      for (const Value& number : fields.sequence("params")) {
        const int64_t index = in_context(fields.where("params"), [&] { return number.as_int(); });
        const Value* state = states.as_dict().find(index);
        std::optional<Shape> shape = state == nullptr ? std::nullopt : state_shape(*state);
        if (shape) shape = told_apart(std::move(*shape), is_of_experts(group));
        indices.push_back({static_cast<size_t>(index), std::move(shape)});
      }
      groups.push_back(std::move(indices));
    }
    std::vector<Shape> shapes;
    for (const Candidate& candidate : candidates_) {
      shapes.push_back(
          told_apart(candidate.stored.shape(), are_marked && is_expert_(candidate.name)));
    }
    const auto assigned = assign_in_order(shapes, groups);
    if (!assigned) return false;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      candidates_[i].index = (*assigned)[i];
      candidates_[i].master = (*assigned)[i] ? std::optional(candidates_[i].stored) : std::nullopt;
    }
    frozen_known_ = true;
    note_once(draft_.notes,
              "the optimizer's states have no names; they are given to the parameters in the order "
              "of the model");
    return true;
  }

  void match_groups(const Fields& optimizer) {
    const auto groups = optimizer.sequence(keys::kFp32Groups);
    size_t index = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
      const std::string member = std::string(keys::kFp32Groups) + "[" + std::to_string(g) + "]";
      const auto masters =
          in_context(optimizer.where(member), [&] { return groups[g].as_sequence(); });
      size_t next = 0;
      for (size_t i = 0; i < masters.size(); ++i) {
        const Where where = optimizer.where(member + "[" + std::to_string(i) + "]");
        in_context(where, [&] {
          const TensorSource master = archive_.tensor(masters[i]);
          next = match(next, master.flatten(), look_of(master.numel()),
                       [&](const Candidate& candidate) -> std::optional<TensorSource> {
                         if (candidate.stored.shape() != master.shape()) return std::nullopt;
                         return master;
                       }) +
                 1;
          candidates_[next - 1].index = index++;
        });
      }
    }
  }

  void match_flat_groups(const Fields& optimizer) {
    const auto groups = optimizer.sequence(keys::kFp32GroupsFlat);
    for (size_t g = 0; g < groups.size(); ++g) {
      const Where where =
          optimizer.where(std::string(keys::kFp32GroupsFlat) + "[" + std::to_string(g) + "]");
      in_context(where, [&] {
        const TensorSource flat = archive_.tensor(groups[g]).flatten();
        size_t next = 0;
        for (int64_t at = 0; at < flat.numel();) {
          const size_t found = in_context({.offset = static_cast<uint64_t>(at)}, [&] {
            const TensorSource rest = flat.narrow(0, at, flat.numel() - at);
            return match(next, rest, 1,
                         [&](const Candidate& candidate) -> std::optional<TensorSource> {
                           const int64_t count = candidate.stored.numel();
                           if (count == 0 || count > flat.numel() - at) return std::nullopt;
                           return flat.narrow(0, at, count).view(candidate.stored.shape());
                         });
          });
          candidates_[found].index = g;
          candidates_[found].flat_begin = at;
          candidates_[found].flat_numel = flat.numel();
          at += candidates_[found].stored.numel();
          next = found + 1;
        }
      });
    }
  }

  // How many elements of a tensor are looked at to find it: few different numbers of them.
  static int64_t look_of(int64_t numel) {
    constexpr uint64_t kMaxLook = 1024;
    return static_cast<int64_t>(std::bit_floor(std::min(static_cast<uint64_t>(numel), kMaxLook)));
  }

  void index_candidates() {
    if (indexed_) return;
    indexed_ = true;
    std::vector<std::byte> bytes;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      const TensorSource& stored = candidates_[i].stored;
      const int64_t look = look_of(stored.numel());
      bytes.resize(static_cast<size_t>(look) * size_of(stored.dtype()));
      read_elements(draft_.inputs, stored, 0, look, bytes);
      unmatched_[{stored.dtype(), look}][hash_of(bytes)].insert(i);
    }
  }

  static uint64_t hash_of(const std::vector<std::byte>& bytes) {
    return keyed_hash(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }

  // The candidates without a master whose first elements are the roundings of `values`; at
  // least `least` are looked at. There is one set for each type and number of elements.
  std::vector<std::set<size_t>*> beginning_as(const TensorSource& values, int64_t least) {
    index_candidates();
    std::vector<std::byte> wide;
    std::vector<std::byte> rounded;
    std::vector<std::set<size_t>*> found;
    for (auto& [kind, by_hash] : unmatched_) {
      const auto& [dtype, look] = kind;
      if (look < least || look > values.numel() || !can_convert(values.dtype(), dtype)) continue;
      wide.resize(static_cast<size_t>(look) * size_of(values.dtype()));
      read_elements(draft_.inputs, values, 0, look, wide);
      rounded.resize(static_cast<size_t>(look) * size_of(dtype));
      convert(values.dtype(), dtype, wide.data(), rounded.data(), static_cast<size_t>(look));
      const auto same = by_hash.find(hash_of(rounded));
      if (same != by_hash.end()) found.push_back(&same->second);
    }
    return found;
  }

  // Gives the next master to the parameter whose 16-bit copy is its rounding. Users build groups by
  // walking the model, so the first that fits from `next` on is taken, and only then one before it.
  // `master_for` says what the master would be for a candidate, if it can be one at all; it begins
  // where `values` do.
  template <typename F>
  size_t match(size_t next, const TensorSource& values, int64_t least, F&& master_for) {
    const std::vector<std::set<size_t>*> sets = beginning_as(values, least);
    std::vector<size_t> fitting;
    // One to take, and one more for the note.
    const auto look_in = [&](size_t begin, size_t end) {
      for (size_t at = begin; at < end && fitting.size() < 2;) {
        size_t index = end;
        for (const std::set<size_t>* set : sets) {
          const auto first = set->lower_bound(at);
          if (first != set->end()) index = std::min(index, *first);
        }
        if (index == end) return;
        at = index + 1;
        const std::optional<TensorSource> master = master_for(candidates_[index]);
        if (!master) continue;
        if (is_rounding_of(draft_.inputs, candidates_[index].stored, *master)) {
          fitting.push_back(index);
        }
      }
    };
    look_in(next, candidates_.size());
    look_in(0, std::min(next, candidates_.size()));
    if (fitting.empty()) {
      archive_.check_records();  // one that is damaged is what has to be said
      throw InconsistentError({}, "no parameter of `module` is the rounding of this fp32 master");
    }
    Candidate& taken = candidates_[fitting.front()];
    taken.master = master_for(taken);
    for (std::set<size_t>* set : sets) set->erase(fitting.front());
    if (fitting.size() > 1) {
      draft_.notes.push_back("the fp32 master taken for '" + taken.name + "' also rounds to '" +
                             candidates_[fitting[1]].name + "'; they were told apart by order");
    }
    return fitting.front();
  }

  CheckpointDraft& draft_;
  const Shard& shard_;
  const TorchArchive& archive_;
  const std::function<bool(const std::string&)>& is_expert_;
  std::vector<Candidate> candidates_;
  // Candidates without a master, by type, number of elements that are looked at, and their hash.
  std::map<std::pair<DType, int64_t>, KeyedMap<uint64_t, std::set<size_t>>> unmatched_;
  bool indexed_ = false;
  std::vector<ParamGroup> groups_;
  KeyedSet<std::string> noted_;  // states of the rank
  bool frozen_known_ = true;
  bool states_assigned_ = true;
};

}  // namespace

PlainOptimizer read_plain_optimizer(CheckpointDraft& draft, const Shard& shard,
                                    const Fields* optimizer,
                                    const std::vector<std::pair<std::string, TensorSource>>& params,
                                    const std::function<bool(const std::string&)>& is_expert) {
  return PlainReader(draft, shard, params, is_expert).read(optimizer);
}

}  // namespace dsckpt
