#include "checkpoint/order_match.h"

#include <cstdint>
#include <map>
#include <numeric>
#include <utility>

namespace dsckpt {

std::optional<std::vector<std::optional<size_t>>> assign_in_order(
    const std::vector<Shape>& candidates, const std::vector<std::vector<OwnedIndex>>& groups) {
  // Ways to have dealt with the first candidates, by how far each group has come; more than one
  // way is as bad as two.
  struct Way {
    bool unique = true;
    size_t last;  // of `deals`
  };
  // What a candidate got, after what those before it got: ways share their beginnings.
  struct Deal {
    std::optional<size_t> number;
    size_t before;
  };
  constexpr size_t kMaxWays = 4096;
  constexpr size_t kMaxHeld = 1 << 24;  // numbers in `ways`
  // Of all ways together. One costs as much as looking at so many groups.
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

}  // namespace dsckpt
