#include "inspect/grid.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <string_view>

#include "checkpoint/experts.h"
#include "deepspeed/keys.h"

namespace dsckpt {
namespace {

// Whose names are those of a pipeline's layers: "4.fc1.weight", "tied_modules.embed.weight".
std::string layers_of(const Checkpoint& world) {
  std::optional<uint32_t> first;
  uint32_t last = 0;
  std::set<std::string_view> tied;
  for (const Param& param : world.params()) {
    std::string_view name = param.name;
    if (name.starts_with(keys::kTiedModules)) {
      name.remove_prefix(keys::kTiedModules.size());
      tied.insert(name.substr(0, name.find('.')));
      continue;
    }
    uint32_t layer = 0;
    const auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), layer);
    if (failed != std::errc() || end == name.data() + name.size() || *end != '.') return {};
    first = std::min(first.value_or(layer), layer);
    last = std::max(last, layer);
  }
  std::string text;
  if (first) text = std::to_string(*first);
  if (first && last > *first) text += " to " + std::to_string(last);
  for (const std::string_view key : tied) {
    text += (text.empty() ? "tied " : ", tied ") + std::string(key);
  }
  return text;
}

}  // namespace

std::vector<GridRank> grid_of(const Checkpoint& checkpoint) {
  const CheckpointFacts& facts = checkpoint.facts();
  const Mesh& mesh = facts.mesh;
  if (facts.run != RunKind::native || facts.zero_stage == 0 || mesh.pp * mesh.tp == 1 ||
      !checkpoint.lost_files().empty() ||
      is_folded(checkpoint.files().model.front().archive->root())) {
    return {};
  }
  std::vector<GridRank> grid;
  for (uint32_t mp_rank = 0; mp_rank < mesh.pp * mesh.tp; ++mp_rank) {
    const Checkpoint world = checkpoint.world(mp_rank);
    GridRank rank{.stage = mp_rank / mesh.tp, .tp_rank = mp_rank % mesh.tp};
    for (const Param& param : world.params()) {
      if (!is_trained(param)) continue;
      ++rank.params;
      rank.elements += param.weight.numel();
    }
    rank.layers = layers_of(world);
    grid.push_back(std::move(rank));
  }
  return grid;
}

}  // namespace dsckpt
