#include "checkpoint/order_match.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>

#include "base/text.h"
#include "dsckpt/error.h"

namespace dsckpt {

std::optional<std::vector<std::optional<size_t>>> assign_in_order(
    const std::vector<Shape>& candidates, const std::vector<std::vector<OwnedIndex>>& groups) {
  // Ways to have dealt with the first candidates, by how far each group has come; more than one
  // way is as bad as two.
  struct Way {
    bool unique = true;
    size_t last;  // of `deals`
  };
  // The result of a candidate, after the results of those before it: ways share their beginnings.
  struct Deal {
    std::optional<size_t> number;
    size_t before;
  };
  constexpr size_t kMaxWays = 4096;
  constexpr size_t kMaxHeld = 1 << 24;  // numbers in `ways`
  // The number of all ways together. One costs as much as looking at so many groups.
  constexpr size_t kMaxWork = 1 << 27;
  constexpr size_t kWorkOfWay = 64;
  size_t work = 0;
  bool too_many = false;
  std::vector<Deal> deals(1);
  std::map<std::vector<size_t>, Way> ways;
  ways[std::vector<size_t>(groups.size(), 0)] = {.unique = true, .last = 0};
  size_t owned_count = 0;
  for (const auto& group : groups) owned_count += group.size();
  size_t candidates_left = candidates.size();
  for (const Shape& candidate : candidates) {
    --candidates_left;
    std::map<std::vector<size_t>, Way> next;
    const auto reach = [&](std::vector<size_t> at, const Way& from, std::optional<size_t> number) {
      work += kWorkOfWay + groups.size();
      // Those that are left must be enough for what is left of the groups.
      const size_t dealt = std::accumulate(at.begin(), at.end(), size_t{0});
      if (owned_count - dealt > candidates_left) return;
      const auto [found, is_new] =
          next.emplace(std::move(at), Way{.unique = from.unique, .last = deals.size()});
      if (is_new) {
        deals.push_back({number, from.last});
      } else {
        found->second.unique = false;
      }
      too_many = too_many || next.size() > kMaxWays || next.size() * groups.size() > kMaxHeld ||
                 work > kMaxWork;
    };
    for (const auto& [at, way] : ways) {
      reach(at, way, std::nullopt);
      work += groups.size();
      for (size_t g = 0; g < groups.size() && !too_many; ++g) {
        if (at[g] == groups[g].size()) continue;
        const OwnedIndex& owned = groups[g][at[g]];
        if (owned.shape && *owned.shape != candidate) continue;
        std::vector<size_t> moved = at;
        ++moved[g];
        reach(std::move(moved), way, owned.index);
      }
      if (too_many) return std::nullopt;
    }
    ways = std::move(next);
  }
  std::vector<size_t> end;
  for (const auto& group : groups) end.push_back(group.size());
  const auto found = ways.find(end);
  if (found == ways.end() || !found->second.unique) return std::nullopt;
  std::vector<std::optional<size_t>> numbers(candidates.size());
  size_t at = found->second.last;
  for (size_t i = numbers.size(); i > 0; --i) {
    numbers[i - 1] = deals[at].number;
    at = deals[at].before;
  }
  return numbers;
}

std::optional<KeyedMap<std::string, std::string>> names_of_numbers(
    const std::vector<std::vector<std::string>>& groups, const KnownOrder& order,
    const std::function<const Shape*(const std::string&)>& shape_of,
    const std::function<std::optional<Shape>(const std::string&)>& state_shape) {
  KeyedMap<std::string, std::string> names;
  const bool are_as_many =
      !groups.empty() &&
      std::equal(groups.begin(), groups.end(), order.groups.begin(), order.groups.end(),
                 [](const auto& a, const auto& b) { return a.size() == b.size(); });
  if (are_as_many) {
    for (size_t g = 0; g < groups.size(); ++g) {
      for (size_t i = 0; i < groups[g].size(); ++i) names[groups[g][i]] = order.groups[g][i];
    }
    return names;
  }
  std::vector<Shape> candidates;
  for (const std::string& name : order.names) {
    const Shape* shape = shape_of(name);
    if (shape == nullptr) {
      throw InconsistentError({.tensor = printable(name)},
                              "is one of the names of --param-names, but not in the model");
    }
    candidates.push_back(*shape);
  }
  std::vector<std::vector<OwnedIndex>> owned;
  std::vector<std::string> keys;
  for (const auto& group : groups) {
    std::vector<OwnedIndex>& indices = owned.emplace_back();
    for (const std::string& key : group) {
      indices.push_back({keys.size(), state_shape(key)});
      keys.push_back(key);
    }
  }
  if (candidates.empty() || keys.size() > candidates.size()) return std::nullopt;
  const auto assigned = assign_in_order(candidates, owned);
  if (!assigned) return std::nullopt;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if ((*assigned)[i]) names[keys[*(*assigned)[i]]] = order.names[i];
  }
  return names;
}

}  // namespace dsckpt
