#include "checkpoint/experts.h"

#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "checkpoint/affine_map.h"
#include "checkpoint/keys.h"

namespace dsckpt {
using pickle::Value;
namespace {

constexpr int64_t kMaxExperts = 1 << 24;
constexpr std::string_view kLocalExperts = "deepspeed_experts.";

int64_t count_of(const Fields& layer, std::string_view key) {
  const int64_t count = layer.integer(key);
  if (count < 1 || count > kMaxExperts) {
    throw CorruptError(layer.where(key), "is " + std::to_string(count));
  }
  return count;
}

}  // namespace

std::optional<ExpertName> parse_expert_name(const std::string& name) {
  const size_t found = name.rfind(kLocalExperts);
  if (found == name.npos) return std::nullopt;
  const size_t begin = found + kLocalExperts.size();
  int64_t number = 0;
  const auto [end, failed] =
      std::from_chars(name.data() + begin, name.data() + name.size(), number);
  const auto after = static_cast<size_t>(end - name.data());
  if (failed != std::errc() || number < 0 || number > kMaxExperts || after >= name.size() ||
      name[after] != '.') {
    return std::nullopt;
  }
  return ExpertName{name.substr(0, begin), number, name.substr(after)};
}

std::string_view autoep_layers_key(const Value& root) {
  return root.find_or_none(keys::kAutoEpLayers).is_none() &&
                 !root.find_or_none(keys::kAutoEpLayersLegacy).is_none()
             ? keys::kAutoEpLayersLegacy
             : keys::kAutoEpLayers;
}

Experts::Experts(const ModelStates& model) {
  const std::string_view key = autoep_layers_key(model.shard().archive.root());
  const auto layers = model.fields.sequence(key);
  for (size_t i = 0; i < layers.size(); ++i) {
    const Fields fields(model.shard(), layers[i], std::string(key) + "[" + std::to_string(i) + "]");
    const std::string prefix = fields.text("expert_key_prefix");
    if (prefix.empty()) throw CorruptError(fields.where("expert_key_prefix"), "is missing");
    Layer layer{.num_experts = count_of(fields, "num_experts"),
                .ep_size = count_of(fields, "ep_size"),
                .placement = fields.get("expert_placement").value_or(Value()),
                .where = fields.where()};
    for (const std::string_view weight : {".w1", ".w2", ".w3"}) {
      if (!layers_.emplace(prefix + std::string(weight), layer).second) {
        throw InconsistentError(fields.where(), "describes '" + prefix + "' a second time");
      }
    }
  }
}

void Experts::number_globally(std::vector<OwnedParam>& params) {
  std::map<std::string, std::set<int64_t>> local;
  for (const OwnedParam& param : params) {
    if (param.ep_size == 1) continue;
    if (const auto expert = parse_expert_name(param.name))
      local[expert->before].insert(expert->number);
  }
  for (OwnedParam& param : params) {
    const auto expert = param.ep_size > 1 ? parse_expert_name(param.name) : std::nullopt;
    if (!expert) continue;
    const auto count = static_cast<int64_t>(local[expert->before].size());
    if (expert->number >= count) {
      throw InconsistentError({.tensor = param.name},
                              "is expert " + std::to_string(expert->number) + " of a rank with " +
                                  std::to_string(count));
    }
    param.name =
        expert->before + std::to_string(param.ep_rank * count + expert->number) + expert->after;
    param.ep_rank = 0;
    param.ep_size = 1;
  }
}

TensorSource Experts::merge(const std::string& name, const std::vector<TensorSource>& by_rank,
                            std::string_view state) const {
  const Layer& layer = layers_.at(name);
  const auto differ = [&](const std::string& what) {
    throw InconsistentError(
        {.file = layer.where.file, .member = layer.where.member, .tensor = name}, what);
  };
  if (static_cast<int64_t>(by_rank.size()) != layer.ep_size) {
    differ("is of " + std::to_string(layer.ep_size) + " expert-parallel ranks, the files of " +
           std::to_string(by_rank.size()));
  }
  if (by_rank.front().shape().empty()) differ("has no dimension for the experts");
  if (!layer.placement.is_none()) {
    Shape logical = by_rank.front().shape();
    logical[0] = layer.num_experts;
    const AffineAssembly assembly(
        AffineMap::from_expert_placement(layer.placement, logical, layer.where));
    return assembly.merge(by_rank, std::string(state) + " of '" + name + "'");
  }
  const TensorSource all = TensorSource::cat(0, by_rank);
  if (all.shape()[0] != layer.num_experts) {
    differ("has " + std::to_string(layer.num_experts) + " experts, the ranks together " +
           std::to_string(all.shape()[0]));
  }
  return all;
}

}  // namespace dsckpt
