#include "checkpoint/experts.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "base/keyed_hash.h"
#include "base/text.h"
#include "checkpoint/affine_map.h"
#include "deepspeed/keys.h"
#include "format/compare_values.h"

namespace dsckpt {
using pickle::Value;
namespace {

constexpr std::string_view kLocalExperts = "deepspeed_experts.";
constexpr std::array<std::string_view, 3> kFusedWeights{".w1", ".w2", ".w3"};

int64_t count_of(const Fields& layer, std::string_view key) {
  const int64_t count = layer.integer(key);
  if (count < 1 || count > kMaxExperts) {
    throw CorruptError(layer.where(key), "is " + std::to_string(count));
  }
  return count;
}

// Entries of a placement, right or wrong ones.
size_t placed_experts(const Value& placement) {
  size_t count = 0;
  for (const Value& rank : placement.find_or_none("ranks").sequence_or_empty()) {
    count += rank.find_or_none("experts").sequence_or_empty().size();
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

bool is_expert(const Param& param) {
  return param.form.ep_num_experts.has_value() || parse_expert_name(param.name).has_value();
}

std::string_view autoep_layers_key(const Value& root) {
  return root.find_or_none(keys::kAutoEpLayers).is_none() &&
                 !root.find_or_none(keys::kAutoEpLayersLegacy).is_none()
             ? keys::kAutoEpLayersLegacy
             : keys::kAutoEpLayers;
}

std::vector<std::string> AutoEpRecord::fused() const {
  std::vector<std::string> names;
  for (const std::string_view weight : kFusedWeights) names.push_back(prefix + std::string(weight));
  return names;
}

std::vector<AutoEpRecord> autoep_records(const pickle::Value& root) {
  const std::string_view key = autoep_layers_key(root);
  std::vector<AutoEpRecord> records;
  for (const Value& layer : root.find_or_none(key).sequence_or_empty()) {
    in_context({.member = std::string(key)}, [&] {
      const int64_t number = layer.at("moe_layer_id").as_int();
      const int64_t experts = layer.at("num_experts").as_int();
      if (number < 0 || number > kMaxExperts || experts < 1 || experts > kMaxExperts) {
        throw CorruptError(
            {}, "says that layer " + std::to_string(number) + " has " + counted(experts, "expert"));
      }
      records.push_back({.number = static_cast<uint32_t>(number),
                         .num_experts = experts,
                         .prefix = std::string(layer.at("expert_key_prefix").as_string())});
    });
  }
  return records;
}

bool is_folded(const pickle::Value& root) {
  return !root.find_or_none(keys::kFolding).is_none();
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
    for (const std::string_view weight : kFusedWeights) {
      if (!layers_.emplace(prefix + std::string(weight), layer).second) {
        throw InconsistentError(fields.where(), "describes '" + prefix + "' a second time");
      }
      fused_.push_back(prefix + std::string(weight));
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

void Experts::count_experts(const Layer& layer, const std::string& name, size_t experts) {
  constexpr uint64_t kMostCounted = 1 << 22;
  counted_ += experts;
  if (counted_ <= kMostCounted) return;
  throw UnsupportedError({.file = layer.where.file, .member = layer.where.member, .tensor = name},
                         "the layers have too many experts together");
}

std::vector<int64_t> Experts::experts_of(const std::string& name, int64_t ep_rank) {
  const Layer& layer = layers_.at(name);
  std::vector<int64_t> numbers;
  return in_context(layer.where, [&] {
    if (ep_rank < 0 || ep_rank >= layer.ep_size || layer.num_experts % layer.ep_size != 0) {
      throw CorruptError({}, "does not say which experts are on rank " + std::to_string(ep_rank));
    }
    if (layer.placement.is_none()) {
      const int64_t count = layer.num_experts / layer.ep_size;
      count_experts(layer, name, static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) numbers.push_back(ep_rank * count + i);
      return numbers;
    }
    const auto ranks = layer.placement.at("ranks").as_sequence();
    if (static_cast<size_t>(ep_rank) >= ranks.size()) {
      throw CorruptError({}, "places no experts on rank " + std::to_string(ep_rank));
    }
    const auto experts = ranks[static_cast<size_t>(ep_rank)].at("experts").as_sequence();
    count_experts(layer, name, experts.size());
    KeyedSet<int64_t> known;
    for (const Value& number : experts) {
      numbers.push_back(number.as_int());
      if (known.insert(numbers.back()).second) continue;
      throw CorruptError({}, "places an expert twice on rank " + std::to_string(ep_rank));
    }
    return numbers;
  });
}

void add_router_aliases(ModelStates& model, const InputFiles& inputs) {
  const std::string_view key = autoep_layers_key(model.shard().archive.root());
  const auto layers = model.fields.sequence(key);
  if (layers.empty()) return;
  std::map<std::string_view, Value> by_name;
  for (const auto& [name, value] : model.module) by_name.emplace(name, value);
  KeyedSet<std::string> aliases = model.aliases();
  std::set<std::string> modules;
  for (const Value& layer : layers) {
    const Value path = layer.find_or_none("module_path");
    if (!path.is(pickle::Kind::string)) continue;
    const std::string module = std::string(path.as_string()) + ".";
    if (!modules.insert(module).second) continue;
    std::map<std::string, std::map<std::string, Value>> children;  // child -> rest of the name
    for (auto at = by_name.lower_bound(module);
         at != by_name.end() && at->first.starts_with(module); ++at) {
      const std::string name(at->first);
      const size_t dot = name.find('.', module.size());
      if (dot == name.npos) continue;
      children[name.substr(module.size(), dot - module.size())].emplace(name.substr(dot),
                                                                        at->second);
    }
    const auto router = children.find("router");
    if (router == children.end()) continue;
    const auto is_router = [&](const auto& entry) {
      const auto same = router->second.find(entry.first);
      if (same == router->second.end()) return false;
      return in_context(model.shard().where(keys::kModule), [&] {
        const TorchArchive& archive = model.shard().archive;
        if (same_values(inputs, archive.tensor(entry.second), archive.tensor(same->second))) {
          return true;
        }
        // Two weights, or one whose copy is damaged.
        archive.check_record_of(entry.second);
        archive.check_record_of(same->second);
        return false;
      });
    };
    for (const auto& [child, entries] : children) {
      if (child == "router" || entries.size() != router->second.size() ||
          !std::all_of(entries.begin(), entries.end(), is_router)) {
        continue;
      }
      for (const auto& entry : entries) {
        const std::string name = module + child + entry.first;
        if (model.is_trainable(name) || !aliases.insert(name).second) continue;
        model.tie(name, module + "router" + entry.first);
      }
    }
  }
}

void MissingFiles::add(std::string name) {
  ++count;
  if (names.size() <= kMaxListed) names.push_back(std::move(name));
}

void MissingFiles::add_experts(uint32_t mp_rank, uint32_t layer, int64_t experts,
                               const std::set<uint32_t>& there) {
  const auto end = there.lower_bound(static_cast<uint32_t>(experts));
  uint64_t lacking =
      static_cast<uint64_t>(experts) - static_cast<uint64_t>(std::distance(there.begin(), end));
  count += lacking;
  for (uint32_t expert = 0; lacking > 0 && names.size() <= kMaxListed; ++expert) {
    if (there.contains(expert)) continue;
    const ShardName name{
        .kind = ShardName::Kind::expert, .mp_rank = mp_rank, .layer = layer, .expert = expert};
    names.push_back(name.file_name());
    --lacking;
  }
}

void check_expert_files(const CheckpointDraft& draft) {
  using Numbers = std::set<uint32_t>;
  std::map<std::pair<uint32_t, uint32_t>, Numbers> of_rank;  // by mp rank and layer
  std::map<uint32_t, Numbers> of_any;                        // by layer
  for (const ShardFile& file : draft.folder.of_kind(ShardName::Kind::expert)) {
    of_rank[{file.name.mp_rank, file.name.layer}].insert(file.name.expert);
    of_any[file.name.layer].insert(file.name.expert);
  }
  const auto strange = [&](ShardName::Kind kind, const std::string& why) {
    const std::vector<ShardFile> files = draft.folder.of_kind(kind);
    if (files.empty()) return;
    throw InconsistentError({.file = draft.folder.path.string()},
                            files.front().path.filename().string() + " is one too many: " + why);
  };
  if (!draft.optim_shards.empty()) {
    strange(ShardName::Kind::expert_optim, "it is of a run without ZeRO");
  }
  const bool has_experts =
      std::any_of(draft.model_shards.begin(), draft.model_shards.end(), [](const Shard& shard) {
        return !Fields(shard, shard.archive.root()).sequence("num_experts").empty();
      });
  if (!has_experts) strange(ShardName::Kind::expert, "no model_states file names experts");

  MissingFiles missing;
  for (const Shard& shard : draft.model_shards) {
    if (shard.name.kind != ShardName::Kind::model_states) continue;
    const Fields fields(shard, shard.archive.root());
    const bool folded = fields.has(keys::kFolding);
    const auto layers = fields.sequence("num_experts");
    for (uint32_t layer = 0; layer < layers.size(); ++layer) {
      const int64_t experts = in_context(fields.where("num_experts"), [&] {
        const int64_t number = layers[layer].as_int();
        if (number < 0 || number > kMaxExperts) {
          throw CorruptError({}, "is " + std::to_string(number));
        }
        return number;
      });
      if (folded && shard.name.mp_rank > 0) continue;
      const Numbers& found = folded ? of_any[layer] : of_rank[{shard.name.mp_rank, layer}];
      missing.add_experts(shard.name.mp_rank, layer, experts, found);
    }
  }
  if (missing.count == 0) return;
  throw InconsistentError({.file = draft.folder.path.string()},
                          counted(missing.count, "file") + " of experts " +
                              (missing.count == 1 ? "is" : "are") +
                              " missing:" + listed(missing.names));
}

TensorSource Experts::merge(const std::string& name, const std::vector<TensorSource>& by_rank,
                            std::string_view state) {
  const Layer& layer = layers_.at(name);
  const auto differ = [&](const std::string& what) {
    throw InconsistentError(
        {.file = layer.where.file, .member = layer.where.member, .tensor = name}, what);
  };
  if (static_cast<int64_t>(by_rank.size()) != layer.ep_size) {
    differ("is of " + counted(layer.ep_size, "expert-parallel rank") + ", the files of " +
           std::to_string(by_rank.size()));
  }
  if (by_rank.front().shape().empty()) differ("has no dimension for the experts");
  if (!layer.placement.is_none()) {
    count_experts(layer, name, placed_experts(layer.placement));
    Shape logical = by_rank.front().shape();
    logical[0] = layer.num_experts;
    const AffineAssembly assembly(
        AffineMap::from_expert_placement(layer.placement, logical, layer.where));
    return assembly.merge(by_rank, std::string(state) + " of '" + name + "'");
  }
  const TensorSource all = TensorSource::cat(0, by_rank);
  if (all.shape()[0] != layer.num_experts) {
    differ("has " + counted(layer.num_experts, "expert") + ", the ranks together " +
           std::to_string(all.shape()[0]));
  }
  return all;
}

}  // namespace dsckpt
