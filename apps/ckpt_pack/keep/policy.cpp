#include "ckpt_pack/keep/policy.h"

#include <algorithm>
#include <cmath>

namespace dsckpt::pack {
namespace {

constexpr std::string_view kSmallest = "=min";
constexpr std::string_view kLargest = "=max";

bool is_smaller_better(const std::string& best) {
  if (best.ends_with(kLargest)) return false;
  return best.ends_with(kSmallest) || best.ends_with("loss");
}

}  // namespace

std::string metric_name(const std::string& best) {
  const bool has_end = best.ends_with(kSmallest) || best.ends_with(kLargest);
  return has_end ? best.substr(0, best.size() - kSmallest.size()) : best;
}

std::set<std::string> staying(const Policy& policy, const std::vector<PolicyCheckpoint>& complete) {
  std::set<std::string> stay;
  std::vector<PolicyCheckpoint> known;
  for (const PolicyCheckpoint& each : complete) {
    if (each.step) {
      known.push_back(each);
    } else {
      stay.insert(each.name);
    }
  }
  std::sort(known.begin(), known.end(), [](const PolicyCheckpoint& a, const PolicyCheckpoint& b) {
    return *a.step != *b.step ? *a.step > *b.step : a.name > b.name;
  });
  const uint64_t newest = policy.last.value_or(1);
  const PolicyCheckpoint* best = nullptr;
  for (size_t i = 0; i < known.size(); ++i) {
    const PolicyCheckpoint& each = known[i];
    const bool is_multiple =
        policy.every != 0 && *each.step % static_cast<int64_t>(policy.every) == 0;
    if (!policy.removes() || i < newest || is_multiple) stay.insert(each.name);
    if (policy.best.empty() || !each.metric || std::isnan(*each.metric)) continue;
    const bool is_better =
        best == nullptr || (is_smaller_better(policy.best) ? *each.metric < *best->metric
                                                           : *each.metric > *best->metric);
    if (is_better) best = &each;
  }
  if (best != nullptr) stay.insert(best->name);
  return stay;
}

}  // namespace dsckpt::pack
