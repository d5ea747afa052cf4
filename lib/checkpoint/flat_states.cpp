#include "checkpoint/flat_states.h"

#include <algorithm>

#include "checkpoint/optim_states.h"
#include "deepspeed/keys.h"
#include "dsckpt/error.h"
#include "format/meta_tensor.h"

namespace dsckpt {
using pickle::Kind;
using pickle::Value;
namespace {

// The optimizer's number for its tensor `index`: param_groups list them in order.
int64_t number_of(const Value& optimizer, size_t index) {
  size_t at = index;
  for (const Value& group : optimizer.find_or_none(keys::kParamGroups).sequence_or_empty()) {
    const auto params = group.find_or_none("params").sequence_or_empty();
    if (at < params.size()) {
      return params[at].is(Kind::integer) ? params[at].as_int() : static_cast<int64_t>(index);
    }
    at -= params.size();
  }
  return static_cast<int64_t>(index);
}

// The dict of one flat tensor's states in one file; nullopt if there is none.
std::optional<Value> states_of(const Fields& optimizer, std::string_view state_key, size_t index) {
  const auto all = optimizer.get(state_key);
  if (!all) return std::nullopt;
  return in_context(optimizer.where(state_key), [&]() -> std::optional<Value> {
    if (all->is(Kind::list)) {
      const auto groups = all->as_sequence();
      if (index >= groups.size()) throw CorruptError({}, "does not fit the groups");
      return groups[index].is_mapping() ? std::optional(groups[index]) : std::nullopt;
    }
    const auto state = all->find("state");
    if (!state || !state->is_mapping()) return std::nullopt;
    const Value* found = state->as_dict().find(number_of(*all, index));
    return found != nullptr && found->is_mapping() ? std::optional(*found) : std::nullopt;
  });
}

bool is_flat(const Shard& shard, const Value& value) {
  return TorchArchive::is_tensor(value) && shard.archive.info(value).shape.size() == 1;
}

// None, or a number, be it in a tensor.
bool is_plain(const Shard& shard, const Value& value) {
  return value.is_none() || value.is(Kind::boolean) || shard.archive.scalar(value);
}

bool same_plain(const ShardValue& a, const ShardValue& b) {
  if (a.value.kind() != b.value.kind()) return false;
  return a.value.is_none() || a.archive->scalar(a.value) == b.archive->scalar(b.value);
}

}  // namespace

std::string FlatStates::member(std::string_view state_key, size_t index, std::string_view key) {
  return std::string(state_key) + ".state[" + std::to_string(index) + "]." + std::string(key);
}

void note_once(std::vector<std::string>& notes, std::string note) {
  if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(std::move(note));
}

FlatStates flat_states(const std::vector<const Shard*>& ranks, std::string_view state_key,
                       size_t index) {
  std::vector<Fields> wrappers;
  for (const Shard* shard : ranks) wrappers.push_back(optimizer_state(*shard));
  return flat_states(wrappers, state_key, index);
}

FlatStates flat_states(const std::vector<Fields>& ranks, std::string_view state_key, size_t index) {
  FlatStates result;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const Shard& shard = ranks[rank].shard();
    const auto differ = [&](std::string_view key) {
      throw InconsistentError(shard.where(FlatStates::member(state_key, index, key)),
                              "is not as in " + ranks.front().shard().display);
    };
    size_t next = 0;
    const auto states = states_of(ranks[rank], state_key, index);
    for (const auto& item : states ? states->as_dict().items : pickle::DictNode().items) {
      if (!item.first.is(Kind::string)) continue;
      const std::string key(item.first.as_string());
      const Value& value = item.second;
      if (is_meta_tensor(value)) continue;  // stripped
      in_context(shard.where(FlatStates::member(state_key, index, key)), [&] {
        if (key == "step") {
          if (value.is_none()) return;
          if (!shard.archive.scalar(value)) throw CorruptError({}, "is not a number");
          if (rank == 0) result.step = {&shard.archive, value};
          return;
        }
        if (!is_flat(shard, value)) {
          if (rank == 0) {
            result.others.push_back({key, {&shard.archive, value}, is_plain(shard, value)});
            return;
          }
          const auto first =
              std::find_if(result.others.begin(), result.others.end(),
                           [&](const WholeState& other) { return other.key == key; });
          if (first == result.others.end()) differ(key);
          first->same_on_all_ranks = first->same_on_all_ranks && is_plain(shard, value) &&
                                     same_plain(first->value, {&shard.archive, value});
          return;
        }
        const TensorSource piece = shard.archive.tensor(value);
        if (rank == 0) {
          result.states.push_back({key, {piece}, {value}});
        } else if (next >= result.states.size() || result.states[next].key != key ||
                   result.states[next].pieces.front().dtype() != piece.dtype()) {
          differ(key);
        } else {
          result.states[next].pieces.push_back(piece);
          result.states[next].tensors.push_back(value);
        }
        ++next;
      });
    }
    if (next != result.states.size()) differ(result.states[next].key);
  }
  return result;
}

}  // namespace dsckpt
