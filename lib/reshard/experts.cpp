#include "reshard/experts.h"

#include <algorithm>
#include <utility>

#include "checkpoint/experts.h"
#include "dsckpt/error.h"

namespace dsckpt {
using pickle::Document;
using pickle::Value;
namespace {

// moe/utils.py split_params_into_different_moe_groups_for_optimizer, max_group_size.
constexpr int64_t kMaxGroupSize = 178956971;

std::string group_name(uint32_t ep) {
  return "ep_size_" + std::to_string(ep);
}

Value integers(Document& document, const Shape& values) {
  std::vector<Value> items;
  for (const int64_t value : values) items.push_back(Document::integer(value));
  return document.list(std::move(items));
}

Shape row_major_strides(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

// One entry of ds_autoep_layers for one rank of a new mesh.
class AutoEpLayer {
 public:
  AutoEpLayer(ArchiveCopy& copy, const Value& layer, const ExpertMesh& mesh, uint32_t rank)
      : copy_(copy),
        document_(copy.document()),
        layer_(layer),
        mesh_(mesh),
        ep_rank_(mesh.ep_rank(rank)),
        edp_rank_(mesh.edp_rank(rank)),
        experts_(layer.at("num_experts").as_int()),
        local_(experts_ / mesh.ep) {
    if (experts_ < 1 || experts_ % mesh.ep != 0) {
      throw UsageError(std::to_string(experts_) + " experts of '" +
                       std::string(layer.at("module_path").as_string()) +
                       "' do not divide evenly over " + std::to_string(mesh.ep) +
                       " expert-parallel ranks");
    }
    check_placement();
  }

  Value value() {
    return copy_.dict_of(layer_, [&](std::string_view key, const Value& value) {
      return std::optional(field(key, value));
    });
  }

 private:
  Value field(std::string_view key, const Value& value) {
    if (key == "num_local_experts") return Document::integer(local_);
    if (key == "ep_size") return Document::integer(mesh_.ep);
    if (key == "expert_placement") return placement();
    if (key == "affine_maps") return affine_maps(value);
    if (key == "ep_group_name") return document_.string(group_name(mesh_.ep));
    if (key == "ep_rank") return Document::integer(ep_rank_);
    if (key == "expert_data_parallel_rank") return Document::integer(edp_rank_);
    if (key == "expert_data_parallel_world_size") return Document::integer(mesh_.edp());
    if (key == "global_expert_start") return Document::integer(ep_rank_ * local_);
    if (key == "global_expert_end") return Document::integer((ep_rank_ + 1) * local_);
    return copy_.of(value);
  }

  void check_placement() const {
    int64_t next = 0;
    const Value placement = layer_.find_or_none("expert_placement");
    for (const Value& rank : placement.find_or_none("ranks").sequence_or_empty()) {
      for (const Value& expert : rank.at("experts").as_sequence()) {
        if (expert.as_int() == next++) continue;
        throw UnsupportedError(
            {.member = "ds_autoep_layers"},
            "places the experts of '" + std::string(layer_.at("module_path").as_string()) +
                "' in another order than DeepSpeed's engine, which could not load them");
      }
    }
  }

  Value placement() {
    const Value dict = document_.dict();
    copy_.set(dict, "version", Document::integer(1));
    copy_.set(dict, "num_experts", Document::integer(experts_));
    copy_.set(dict, "ep_size", Document::integer(mesh_.ep));
    std::vector<Value> ranks;
    for (uint32_t rank = 0; rank < mesh_.ep; ++rank) {
      const Value entry = document_.dict();
      copy_.set(entry, "rank", Document::integer(rank));
      Shape experts;
      for (int64_t i = 0; i < local_; ++i) experts.push_back(rank * local_ + i);
      copy_.set(entry, "experts", integers(document_, experts));
      ranks.push_back(entry);
    }
    copy_.set(dict, "ranks", document_.list(std::move(ranks)));
    return dict;
  }

  Value affine_maps(const Value& maps) {
    return copy_.dict_of(maps, [&](std::string_view key, const Value& value) {
      if (key != "params") return std::optional(copy_.of(value));
      return std::optional(copy_.dict_of(value, [&](std::string_view, const Value& entry) {
        return std::optional(affine_map(entry));
      }));
    });
  }

  // checkpoint/autoep_affine.py autoep_placement_to_affine_map.
  Value affine_map(const Value& entry) {
    Shape shape;
    for (const Value& dim : entry.at("logical_shape").as_sequence()) shape.push_back(dim.as_int());
    if (shape.empty() || shape[0] != experts_) {
      throw InconsistentError({.member = "ds_autoep_layers"},
                              "has an affine map of the shape " + to_text(shape) + " for " +
                                  std::to_string(experts_) + " experts");
    }
    const Value dict = document_.dict();
    copy_.set(dict, "logical_shape", integers(document_, shape));
    const Value ranks = document_.dict();
    const Shape strides = row_major_strides(shape);
    shape[0] = local_;
    for (uint32_t rank = 0; rank < mesh_.ep; ++rank) {
      const Value piece = document_.dict();
      copy_.set(piece, "shape", integers(document_, shape));
      copy_.set(piece, "source", place(rank * local_ * strides[0], strides));
      copy_.set(piece, "dest", place(0, strides));
      copy_.set(piece, "locations", integers(document_, {rank}));
      const Value of_rank = document_.dict();
      copy_.set(of_rank, "shard_shape", integers(document_, shape));
      copy_.set(of_rank, "pieces", document_.list({piece}));
      document_.set_item(ranks, Document::integer(rank), of_rank);
    }
    copy_.set(dict, "ranks", ranks);
    return dict;
  }

  Value place(int64_t offset, const Shape& strides) {
    return document_.list({Document::integer(offset), integers(document_, strides)});
  }

  ArchiveCopy& copy_;
  Document& document_;
  const Value& layer_;
  const ExpertMesh& mesh_;
  int64_t ep_rank_;
  int64_t edp_rank_;
  int64_t experts_;
  int64_t local_;
};

}  // namespace

ExpertNames::ExpertNames(std::span<const Param> params, std::string folder)
    : folder_(std::move(folder)) {
  for (const Param& param : params) {
    const auto expert = parse_expert_name(param.name);
    if (expert || param.form.ep_num_experts) experts_.emplace(param.name, &param);
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
    throw UsageError("the " + std::to_string(count) + " experts of '" + name +
                     "' do not divide evenly over " + std::to_string(ep) +
                     " expert-parallel ranks");
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
    // DeepSpeed splits what was one group of the program's.
    const size_t begin = i;
    const uint32_t ep_size = first.ep_size;
    std::vector<std::string> names;
    std::vector<std::vector<std::string>> parts;
    for (; i < groups.size() && groups[i].has_experts() && groups[i].ep_size == ep_size; ++i) {
      // What would have gone into the one before is a group of the program's own.
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

Value autoep_layers_value(ArchiveCopy& copy, const Value& layers, const ExpertMesh& mesh,
                          uint32_t rank) {
  if (layers.is_none()) return {};
  std::vector<Value> made;
  for (const Value& layer : layers.as_sequence()) {
    made.push_back(AutoEpLayer(copy, layer, mesh, rank).value());
  }
  return copy.document().list(std::move(made));
}

}  // namespace dsckpt
