// Compares values that all files of one save share: the same step, configuration and so on.

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <set>
#include <string_view>

#include "base/bytes.h"
#include "base/keyed_hash.h"
#include "base/text.h"
#include "checkpoint/model_states.h"
#include "checkpoint/optim_states.h"
#include "deepspeed/keys.h"
#include "inspect/verify/verification.h"

namespace dsckpt {
namespace {

using Kind = ShardName::Kind;
using pickle::Value;

// A value that files share, with its name in messages.
struct Fact {
  Check check;
  std::string name;
  Value value;
  std::optional<double> number;  // if the value is a number, or a tensor with a single element
};
using Facts = std::vector<Fact>;

// Appends the first values of plain data, in the order of same_plain_data(). Equal data give equal
// texts. `left`: the number of values to append; a long text counts as several. No value is deeper
// than `levels`.
void append_start(std::string& text, const Value& value, int levels, int& left) {
  if (levels == 0 || --left < 0 || TorchArchive::is_tensor(value)) return;
  text += static_cast<char>(value.kind());
  switch (value.kind()) {
    case pickle::Kind::boolean:
      text += value.as_bool() ? '1' : '0';
      break;
    case pickle::Kind::integer:
      append_le(text, value.as_int());
      break;
    case pickle::Kind::string:
      left -= further_values_of(value.as_string());
      if (left >= 0) text += value.as_string();
      break;
    case pickle::Kind::tuple:
    case pickle::Kind::list:
      for (const Value& item : value.as_sequence()) {
        if (left <= 0) break;
        append_start(text, item, levels - 1, left);
      }
      break;
    case pickle::Kind::dict:
      for (const auto& [key, item] : value.as_dict().items) {
        if (left <= 0) break;
        append_start(text, key, levels - 1, left);
        append_start(text, item, levels - 1, left);
      }
      break;
    default:
      break;
  }
}

// Compares facts with the same name in `files` files. A few bytes of a pickle can be an endless
// list, and files may differ only in its last value. So the number of compared values is limited.
class Comparison {
 public:
  explicit Comparison(size_t files)
      : hashed_(static_cast<int>(
            std::clamp(kMostHashed / std::max<size_t>(files, 1), kLeastHashed, kMostOfOne))) {}

  // Equal facts have equal hashes.
  uint64_t hash_of(const Fact* fact) const {
    constexpr int kLevels = 16;
    if (fact == nullptr) return 0;
    if (fact->number) return keyed_hash(std::bit_cast<uint64_t>(*fact->number + 0.0));  // no -0.0
    std::string text;
    int left = hashed_;
    append_start(text, fact->value, kLevels, left);
    return keyed_hash(text);
  }

  // Returns true too after the limit is reached.
  bool are_equal(const Fact* a, const Fact* b) {
    if (a == b || exhausted()) return true;
    if (a == nullptr || b == nullptr || a->number != b->number) return false;
    int left = kMaxPlainValues;
    const bool equal = same_plain_data(a->value, b->value, left);
    compared_ += static_cast<uint64_t>(kMaxPlainValues - left);
    return equal;
  }

  bool exhausted() const { return compared_ > kMostCompared; }

 private:
  static constexpr size_t kMostHashed = 1 << 24;
  static constexpr size_t kLeastHashed = 32;
  static constexpr size_t kMostOfOne = kMaxPlainValues;
  static constexpr uint64_t kMostCompared = 1 << 26;

  int hashed_;
  uint64_t compared_ = 0;
};

std::string text(const Fact& fact) {
  if (fact.value.is(pickle::Kind::string)) return "'" + std::string(fact.value.as_string()) + "'";
  if (!fact.number) return "other than";
  std::string number = std::to_string(*fact.number);
  number.erase(number.find_last_not_of('0') + 1);
  if (number.back() == '.') number.pop_back();
  return number;
}

using FactsByName = KeyedMap<std::string_view, const Fact*>;

FactsByName by_name(const Facts& facts) {
  FactsByName found;
  for (const Fact& fact : facts) found.emplace(fact.name, &fact);
  return found;
}

const Fact* find(const FactsByName& facts, std::string_view name) {
  const auto found = facts.find(name);
  return found == facts.end() ? nullptr : found->second;
}

// Returns the file with the most common value of `name`. If several are equally common, `expected`
// comes first, then the first file.
size_t reference_for(const std::vector<FactsByName>& facts, std::string_view name,
                     std::optional<double> expected, Comparison& comparison) {
  std::vector<const Fact*> found;
  for (const FactsByName& some : facts) found.push_back(find(some, name));
  const std::vector<size_t> first = first_equals(
      facts.size(), [&](size_t i) { return comparison.hash_of(found[i]); },
      [&](size_t i, size_t j) { return comparison.are_equal(found[i], found[j]); });
  std::vector<size_t> votes(facts.size());
  for (const size_t kind : first) ++votes[kind];
  const auto rank = [&](size_t i) {
    return std::pair(votes[i], found[i] != nullptr && expected && found[i]->number == expected);
  };
  size_t best = 0;
  for (size_t i = 1; i < facts.size(); ++i) {
    if (rank(i) > rank(best)) best = i;
  }
  return best;
}

// Returns the first file that is not in `having`.
size_t first_without(const std::vector<size_t>& having) {
  size_t i = 0;
  while (i < having.size() && having[i] == i) ++i;
  return i;
}

// Adds a finding for each file that differs from most others, for the first different fact.
// `expected`: the right number for facts of check `step`.
void compare(Verification& v, const std::vector<CheckedFile*>& files,
             const std::vector<Facts>& facts_of_files, std::optional<double> expected) {
  std::vector<FactsByName> facts;
  std::vector<std::string> names;
  KeyedMap<std::string_view, std::vector<size_t>> files_with;  // files that have a fact of the name
  for (const Facts& some : facts_of_files) {
    for (const Fact& fact : some) {
      std::vector<size_t>& having = files_with[fact.name];
      if (having.empty()) names.push_back(fact.name);
      if (having.empty() || having.back() != facts.size()) having.push_back(facts.size());
    }
    facts.push_back(by_name(some));
  }
  std::map<size_t, std::vector<std::pair<std::string, size_t>>>
      differing;  // file -> name, reference
  for (const std::string& name : names) {
    const std::vector<size_t>& having = files_with.at(name);
    if (having.size() < files.size() - having.size()) {
      const size_t reference = first_without(having);
      for (const size_t i : having) differing[i].emplace_back(name, reference);
      continue;
    }
    Comparison comparison(files.size());
    const size_t reference = reference_for(facts, name, expected, comparison);
    const Fact* right = find(facts[reference], name);
    for (size_t i = 0; i < files.size(); ++i) {
      const Fact* mine = find(facts[i], name);
      if (comparison.are_equal(mine, right)) continue;
      differing[i].emplace_back(name, reference);
    }
    if (comparison.exhausted()) {
      v.skip(find(facts[having.front()], name)->check,
             "'" + name + "' is too long to be compared in all " + counted(files.size(), "file"),
             true);
    }
  }
  for (const auto& [i, places] : differing) {
    const auto& [name, reference] = places.front();
    const Fact* mine = find(facts[i], name);
    const Fact* right = find(facts[reference], name);
    const std::string& other = files[reference]->display;
    std::string message = mine == nullptr    ? "is missing, but is in " + other
                          : right == nullptr ? "is not in " + other
                          : mine->number && right->number
                              ? "is " + text(*mine) + ", but " + text(*right) + " in " + other
                              : "differs from that in " + other;
    if (places.size() > 1) message += "; so do " + std::to_string(places.size() - 1) + " more";
    v.add((mine != nullptr ? mine : right)->check, *files[i], name, std::move(message));
    files[i]->suspect = true;
  }
}

// A tensor whose bytes are already reported as wrong is not a fact.
void add_fact(Verification& v, Facts& facts, Check check, const Shard& shard, std::string name,
              const Value& value) {
  if (value.is_none()) return;
  if (TorchArchive::is_tensor(value) && v.is_doubtful(shard.archive.tensor(value))) return;
  facts.push_back({check, std::move(name), value, shard.archive.scalar(value)});
}

struct Row {
  Check check;
  std::string_view key;
};

constexpr std::array kModelFacts = {Row{Check::step, keys::kGlobalSteps},
                                    Row{Check::step, keys::kSkippedSteps},
                                    Row{Check::step, keys::kGlobalSamples},
                                    Row{Check::step, keys::kDsVersion},
                                    Row{Check::layout, keys::kDpWorldSize},
                                    Row{Check::layout, keys::kMpWorldSize},
                                    Row{Check::layout, keys::kCheckpointParallelDimensions},
                                    Row{Check::step, keys::kDsConfig}};
// Facts that only the files of one world share.
constexpr std::array kWorldFacts = {Row{Check::shape, keys::kFrozenParamShapes},
                                    Row{Check::layout, keys::kBufferNames}};
constexpr std::array kOptimFacts = {Row{Check::step, keys::kLossScaler},
                                    Row{Check::step, keys::kDsVersion},
                                    Row{Check::layout, keys::kZeroStage},
                                    Row{Check::layout, keys::kPartitionCount},
                                    Row{Check::layout, keys::kParamAlignmentPaddings},
                                    Row{Check::step, keys::kClipGrad},
                                    Row{Check::step, keys::kDynamicLossScale}};

Facts model_facts(Verification& v, const Shard& shard, bool of_world) {
  const Value root = shard.archive.root();
  Facts facts;
  for (const Row& row : kModelFacts) {
    add_fact(v, facts, row.check, shard, std::string(row.key), root.find_or_none(row.key));
  }
  for (const Row& row : kWorldFacts) {
    if (of_world) {
      add_fact(v, facts, row.check, shard, std::string(row.key), root.find_or_none(row.key));
    }
  }
  return facts;
}

// Returns the optimizer's own state_dict.
Value states_of(const Value& wrapper) {
  const Value base = wrapper.find_or_none(keys::kBaseOptimizerState);
  return base.is_none() ? wrapper.find_or_none(keys::kOptimizerStateDict) : base;
}

std::string states_name(const Value& wrapper) {
  const bool base = !wrapper.find_or_none(keys::kBaseOptimizerState).is_none();
  return std::string(base ? keys::kBaseOptimizerState : keys::kOptimizerStateDict);
}

// Returns the number of steps of each flat tensor.
Facts step_facts(Verification& v, const Shard& shard, const Value& wrapper) {
  Facts facts;
  const Value states = states_of(wrapper);
  const std::string name = states_name(wrapper);
  const auto list = states.sequence_or_empty();  // elastic files
  for (size_t g = 0; g < list.size(); ++g) {
    add_fact(v, facts, Check::step, shard, name + "[" + std::to_string(g) + "].step",
             list[g].find_or_none("step"));
  }
  const Value of_groups = states.find_or_none("state");
  if (!of_groups.is_mapping()) return facts;
  for (const auto& [index, state] : of_groups.as_dict().items) {
    if (!index.is(pickle::Kind::integer)) continue;
    add_fact(v, facts, Check::step, shard,
             name + ".state[" + std::to_string(index.as_int()) + "].step",
             state.find_or_none("step"));
  }
  return facts;
}

// This finds the wrong one of two ranks that differ: its paddings are not all numbers.
void check_alignment_paddings(const Shard& shard) {
  const Fields wrapper = optimizer_state(shard);
  in_context(wrapper.where(keys::kParamAlignmentPaddings), [&] {
    for (const Value& group : wrapper.sequence(keys::kParamAlignmentPaddings)) {
      for (const Value& padding : group.sequence_or_empty()) padding.as_int();
    }
  });
}

Facts optim_facts(Verification& v, const Shard& shard, bool of_world) {
  const Value wrapper = shard.archive.root().at(keys::kOptimizerStateDict);
  check_alignment_paddings(shard);
  Facts facts = step_facts(v, shard, wrapper);
  if (!of_world && facts.size() > 1) facts.resize(1);
  for (const Row& row : kOptimFacts) {
    // Other stages and slices have other groups.
    if (!of_world && row.check == Check::layout && row.key != keys::kZeroStage) continue;
    add_fact(v, facts, row.check, shard, std::string(row.key), wrapper.find_or_none(row.key));
  }
  if (of_world) {
    add_fact(v, facts, Check::step, shard, states_name(wrapper) + ".param_groups",
             states_of(wrapper).find_or_none(keys::kParamGroups));
  }
  return facts;
}

// Returns the number of optimizer steps according to the model-states files.
std::optional<double> expected_step(Verification& v) {
  for (const Kind kind : {Kind::model_states, Kind::zero_model_states}) {
    for (CheckedFile* file : v.of_kind(kind)) {
      std::optional<double> expected;
      v.attempt(Check::layout, *file, [&] {
        const Fields fields(*file->shard, file->shard->archive.root());
        const auto steps = fields.integer_if_any(keys::kGlobalSteps);
        const auto skipped = fields.integer_if_any(keys::kSkippedSteps);
        if (steps) {
          expected = static_cast<double>(*steps) - static_cast<double>(skipped.value_or(0));
        }
      });
      if (expected) return expected;
    }
  }
  return std::nullopt;
}

// Compares the files of all worlds, and those of each world in more facts.
void compare_worlds(Verification& v, Kind kind,
                    Facts (*facts_of)(Verification&, const Shard&, bool),
                    std::optional<double> expected) {
  const auto compare_some = [&](const std::vector<CheckedFile*>& candidates, bool of_world) {
    std::vector<CheckedFile*> files;
    std::vector<Facts> facts;
    for (CheckedFile* file : candidates) {
      v.attempt(Check::layout, *file, [&] {
        facts.push_back(facts_of(v, *file->shard, of_world));
        files.push_back(file);
      });
    }
    if (files.size() > 1) compare(v, files, facts, expected);
  };
  std::set<uint32_t> worlds;
  for (const CheckedFile* file : v.of_kind(kind)) worlds.insert(file->name->mp_rank);
  for (const uint32_t mp_rank : worlds) compare_some(v.of_kind(kind, mp_rank), true);
  if (worlds.size() > 1) compare_some(v.of_kind(kind), false);
}

// Returns the first parameter with different shapes in two files, or "" if order or groups differ.
std::string first_difference(const ModelStates& a, const ModelStates& b) {
  std::map<std::string, Shape> shapes;
  for (const NamedShapes& group : b.param_shapes) shapes.insert(group.begin(), group.end());
  for (const NamedShapes& group : a.param_shapes) {
    for (const auto& [name, shape] : group) {
      const auto found = shapes.find(name);
      if (found == shapes.end() || found->second != shape) return name;
    }
  }
  return "";
}

uint64_t hash_of(const std::vector<NamedShapes>& groups) {
  std::string text;
  for (const NamedShapes& group : groups) {
    for (const auto& [name, shape] : group) text += name + to_text(shape);
  }
  return keyed_hash(text);
}

// All ranks of a world must have the same shapes, except for their own experts.
void compare_shapes(Verification& v, const std::vector<CheckedFile*>& files) {
  std::vector<CheckedFile*> read;
  std::vector<ModelStates> models;
  for (CheckedFile* file : files) {
    v.attempt(Check::layout, *file, [&] {
      models.emplace_back(*file->shard);
      read.push_back(file);
    });
  }
  const std::vector<size_t> first = first_equals(
      models.size(), [&](size_t i) { return hash_of(models[i].param_shapes); },
      [&](size_t i, size_t j) { return models[i].param_shapes == models[j].param_shapes; });
  const size_t best = largest_kind(first);
  for (size_t i = 0; i < models.size(); ++i) {
    if (first[i] == best) continue;
    v.add({.check = Check::shape,
           .message = "differs from that in " + read[best]->display,
           .file = read[i]->display,
           .rank = read[i]->rank(),
           .member = std::string(keys::kParamShapes),
           .tensor = first_difference(models[i], models[best])});
    read[i]->suspect = true;
  }
}

}  // namespace

void check_model_files_agree(Verification& v) {
  for (const Kind kind : {Kind::model_states, Kind::zero_model_states}) {
    compare_worlds(v, kind, model_facts, std::nullopt);
  }
  std::set<uint32_t> worlds;
  for (const CheckedFile* file : v.of_kind(Kind::zero_model_states)) {
    const bool experts = !file->shard->archive.root().find_or_none(keys::kAutoEpLayers).is_none();
    if (!experts) worlds.insert(file->name->mp_rank);
  }
  for (const uint32_t mp_rank : worlds) {
    compare_shapes(v, v.of_kind(Kind::zero_model_states, mp_rank));
  }
}

void check_optim_files_agree(Verification& v) {
  compare_worlds(v, Kind::optim_states, optim_facts, expected_step(v));
}

}  // namespace dsckpt
