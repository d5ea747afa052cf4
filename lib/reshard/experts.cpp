#include "reshard/experts.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "checkpoint/experts.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

// moe/utils.py split_params_into_different_moe_groups_for_optimizer, max_group_size.
constexpr int64_t kMaxGroupSize = 178956971;

}  // namespace

std::string expert_group_name(uint32_t ep) {
  return std::string(kExpertGroup) + std::to_string(ep);
}

ExpertNames::ExpertNames(std::span<const Param> params, std::string folder)
    : folder_(std::move(folder)) {
  for (const Param& param : params) {
    const auto expert = parse_expert_name(param.name);
    if (is_expert(param)) experts_.emplace(param.name, &param);
    if (!expert) continue;
    int64_t& count = counts_[expert->before];
    count = std::max(count, expert->number + 1);
  }
}

const Param* ExpertNames::find(const std::string& name) const {
  const auto found = experts_.find(name);
  return found == experts_.end() ? nullptr : found->second;
}

int64_t ExpertNames::count_on_rank(const std::string& name, uint32_t ep) const {
  const auto expert = parse_expert_name(name);
  const Param* whole = find(name);
  int64_t count = 0;
  if (expert && counts_.contains(expert->before)) {
    count = counts_.at(expert->before);
  } else if (whole != nullptr && whole->form.ep_num_experts) {
    count = *whole->form.ep_num_experts;
  } else {
    throw UnsupportedError({.file = folder_, .tensor = name},
                           "is in a group of experts, but is none of DeepSpeed's");
  }
  if (count % ep != 0) {
    throw UsageError("the " + counted(count, "expert") + " of '" + name +
                     "' cannot be divided evenly over " + counted(ep, "expert-parallel rank"));
  }
  return count / ep;
}

const Param& ExpertNames::global(const std::string& local, uint32_t ep_rank, uint32_t ep) const {
  const int64_t count = count_on_rank(local, ep);
  const auto expert = parse_expert_name(local);
  const std::string name = expert ? expert->with(ep_rank * count + expert->number) : local;
  const Param* param = find(name);
  if (param == nullptr || (expert && expert->number >= count)) {
    throw InconsistentError({.file = folder_, .tensor = name},
                            "is an expert's parameter that the checkpoint does not have");
  }
  return *param;
}

bool ExpertNames::is_shared(const RunGroup& group, const std::string& local) const {
  if (!group.has_experts()) return true;
  return !group.settings.moe && !parse_expert_name(local) && find(local) == nullptr;
}

std::vector<std::string_view> ExpertNames::members_of(const RunGroup& group) const {
  if (!group.has_experts()) return {group.params.begin(), group.params.end()};
  std::vector<std::string_view> members;
  KeyedSet<std::string_view> seen;
  for (const std::string& name : group.params) {
    if (is_shared(group, name)) {
      members.push_back(name);
      continue;
    }
    for (uint32_t rank = 0; rank < group.ep_size; ++rank) {
      const std::string& whole = global(name, rank, group.ep_size).name;
      if (seen.insert(whole).second) members.push_back(whole);
    }
  }
  return members;
}

Param ExpertNames::local(const std::string& local, uint32_t ep_rank, uint32_t ep) const {
  Param param = global(local, ep_rank, ep);
  param.name = local;
  if (parse_expert_name(local)) return param;
  const int64_t count = count_on_rank(local, ep);
  const auto part = [&](const TensorSource& all) { return all.narrow(0, ep_rank * count, count); };
  param.weight = part(param.weight);
  for (ParamState& state : param.states) {
    if (state.value.shape().empty() || state.value.shape()[0] != count * ep) {
      throw UnsupportedError({.file = folder_, .tensor = local},
                             "has a state '" + state.key + "' that is not cut by experts");
    }
    state.value = part(state.value);
  }
  return param;
}

// A layer's experts stand one after the other, each with the same parameters.
std::vector<std::string> ExpertNames::renamed(const std::vector<std::string>& names,
                                              uint32_t old_ep, uint32_t new_ep) const {
  std::vector<std::string> result;
  for (size_t i = 0; i < names.size();) {
    const auto first = parse_expert_name(names[i]);
    if (!first) {
      result.push_back(names[i++]);
      continue;
    }
    const auto is_of = [&](size_t at, int64_t number) {
      const auto expert = at < names.size() ? parse_expert_name(names[at]) : std::nullopt;
      return expert && expert->before == first->before && expert->number == number;
    };
    const size_t begin = i;
    while (is_of(i, 0)) ++i;
    const size_t each = i - begin;
    const int64_t old_count = count_on_rank(names[begin], old_ep);
    bool in_order = each > 0;
    for (int64_t number = 1; in_order && number < old_count; ++number) {
      for (size_t k = 0; in_order && k < each; ++k, ++i) {
        in_order = is_of(i, number) &&
                   parse_expert_name(names[i])->after == parse_expert_name(names[begin + k])->after;
      }
    }
    if (!in_order) {
      throw UnsupportedError({.file = folder_, .tensor = names[begin]},
                             "belongs to experts that the optimizer does not have in the model's "
                             "order; they cannot be spread over another number of ranks");
    }
    const int64_t new_count = count_on_rank(names[begin], new_ep);
    for (int64_t number = 0; number < new_count; ++number) {
      for (size_t k = 0; k < each; ++k) {
        result.push_back(parse_expert_name(names[begin + k])->with(number));
      }
    }
  }
  return result;
}

int64_t ExpertNames::numel_of(const std::vector<std::string>& names, uint32_t ep) const {
  int64_t numel = 0;
  for (const std::string& name : names) numel += local(name, 0, ep).weight.numel();
  return numel;
}

std::vector<std::vector<std::string>> ExpertNames::split(const std::vector<std::string>& names,
                                                         uint32_t ep) const {
  std::vector<std::vector<std::string>> groups;
  int64_t size = 0;
  for (const std::string& name : names) {
    const Param part = local(name, 0, ep);
    if (groups.empty() || size + part.weight.numel() > kMaxGroupSize) {
      groups.emplace_back();
      size = 0;
    }
    groups.back().push_back(name);
    size += part.weight.numel();
  }
  return groups;
}

void ExpertNames::regroup(std::vector<RunGroup>& groups, uint32_t ep) const {
  std::vector<RunGroup> result;
  for (size_t i = 0; i < groups.size();) {
    const RunGroup first = groups[i];
    if (!first.has_experts() || first.ep_size == ep) {
      result.push_back(groups[i++]);
      continue;
    }
    if (first.unmarked_experts) {
      RunGroup& group = result.emplace_back(groups[i++]);
      group.params = renamed(first.params, first.ep_size, ep);
      group.ep_size = ep;
      continue;
    }
    // DeepSpeed splits what was one group of the program's.
    const size_t begin = i;
    const uint32_t ep_size = first.ep_size;
    std::vector<std::string> names;
    std::vector<std::vector<std::string>> parts;
    for (; i < groups.size() && groups[i].has_experts() && groups[i].ep_size == ep_size &&
           !groups[i].unmarked_experts;
         ++i) {
      // Parameters that would have gone into the one before are a group of the program's own.
      if (i > begin &&
          numel_of({groups[i].params.front()}, ep_size) + numel_of(parts.back(), ep_size) <=
              kMaxGroupSize) {
        break;
      }
      names.insert(names.end(), groups[i].params.begin(), groups[i].params.end());
      parts.push_back(groups[i].params);
    }
    if (parts.size() > 1 && split(names, ep_size) != parts) {
      throw UnsupportedError({.file = folder_},
                             "has groups of experts that were not split as DeepSpeed does by "
                             "itself; they cannot be spread over another number of ranks");
    }
    const std::vector<std::string> now = renamed(names, ep_size, ep);
    for (auto& part : split(now, ep)) {
      result.push_back({.params = std::move(part), .settings = first.settings, .ep_size = ep});
    }
  }
  groups = std::move(result);
}

}  // namespace dsckpt
