#include "checkpoint/flat_states.h"

#include <algorithm>

#include "base/text.h"
#include "checkpoint/optim_states.h"
#include "deepspeed/keys.h"
#include "dsckpt/error.h"
#include "format/meta_tensor.h"

namespace dsckpt {
using pickle::Kind;
using pickle::Value;
namespace {

// Optimizers keep ten at most.
constexpr size_t kMostStates = 64;

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

FlatOptimizer::FlatOptimizer(const Fields& optimizer, std::string_view state_key)
    : fields_(optimizer), state_key_(state_key), all_(optimizer.get(state_key)) {
  if (!all_) return;
  size_t end = 0;
  for (const Value& group : all_->find_or_none(keys::kParamGroups).sequence_or_empty()) {
    params_.push_back(group.find_or_none("params").sequence_or_empty());
    end += params_.back().size();
    ends_.push_back(end);
  }
}

// The optimizer's number for its tensor `index`: param_groups list them in order.
int64_t FlatOptimizer::number_of(size_t index) const {
  const auto group = std::upper_bound(ends_.begin(), ends_.end(), index);
  if (group == ends_.end()) return static_cast<int64_t>(index);
  const auto params = params_[static_cast<size_t>(group - ends_.begin())];
  const Value& number = params[index - (*group - params.size())];
  return number.is(Kind::integer) ? number.as_int() : static_cast<int64_t>(index);
}

std::optional<Value> FlatOptimizer::states_of(size_t index) const {
  if (!all_) return std::nullopt;
  return in_context(fields_.where(state_key_), [&]() -> std::optional<Value> {
    if (all_->is(Kind::list)) {
      const auto groups = all_->as_sequence();
      if (index >= groups.size()) throw CorruptError({}, "does not fit the groups");
      return groups[index].is_mapping() ? std::optional(groups[index]) : std::nullopt;
    }
    const auto state = all_->find("state");
    if (!state || !state->is_mapping()) return std::nullopt;
    const Value* found = state->as_dict().find(number_of(index));
    return found != nullptr && found->is_mapping() ? std::optional(*found) : std::nullopt;
  });
}

std::string FlatStates::member(std::string_view state_key, size_t index, std::string_view key) {
  return std::string(state_key) + ".state[" + std::to_string(index) + "]." + std::string(key);
}

void check_count(const pickle::DictNode& states) {
  if (states.items.size() <= kMostStates) return;
  throw UnsupportedError({}, "has " + counted(states.items.size(), "state") + " of one tensor; " +
                                 std::to_string(kMostStates) + " are read");
}

void note_once(std::vector<std::string>& notes, std::string note) {
  if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(std::move(note));
}

FlatStates flat_states(const std::vector<const FlatOptimizer*>& ranks, size_t index) {
  FlatStates result;
  std::vector<WholeState> others;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const Shard& shard = ranks[rank]->shard();
    const std::string_view state_key = ranks[rank]->state_key();
    const auto differ = [&](std::string_view key) {
      throw InconsistentError(shard.where(FlatStates::member(state_key, index, key)),
                              "is not as in " + ranks.front()->shard().display);
    };
    size_t next = 0;
    const auto states = ranks[rank]->states_of(index);
    if (states) in_context(shard.where(state_key), [&] { check_count(states->as_dict()); });
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
            others.push_back({key, {&shard.archive, value}, is_plain(shard, value)});
            return;
          }
          const auto first =
              std::find_if(others.begin(), others.end(),
                           [&](const WholeState& other) { return other.key == key; });
          if (first == others.end()) differ(key);
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
  result.others = std::move(others);
  return result;
}

}  // namespace dsckpt
