#include "reshard/live_entries.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "checkpoint/experts.h"
#include "deepspeed/keys.h"
#include "dsckpt/error.h"
#include "reshard/copies.h"
#include "reshard/grid_files.h"

namespace dsckpt {
namespace {

// "4." of a layer's name, "tied_modules.embed." of a tied one's.
std::string_view layer_front(std::string_view name) {
  const size_t begin = name.starts_with(keys::kTiedModules) ? keys::kTiedModules.size() : 0;
  const size_t dot = name.find('.', begin);
  return dot == name.npos ? name : name.substr(0, dot + 1);
}

}  // namespace

LocalExperts::LocalExperts(const EngineFacts& engine) {
  for (const EngineTensor& tensor : engine.tensors) {
    const auto expert = tensor.ep > 0 ? parse_expert_name(tensor.name) : std::nullopt;
    if (!expert) continue;
    int64_t& count = counts_[expert->before];
    count = std::max(count, expert->number + 1);
  }
}

int64_t LocalExperts::count(const std::string& name) const {
  const auto expert = parse_expert_name(name);
  const auto found = expert ? counts_.find(expert->before) : counts_.end();
  return found == counts_.end() ? 0 : found->second;
}

LiveEntries::LiveEntries(InputFiles& inputs, const Checkpoint& whole, const Checkpoint& world,
                         const Regrid* grid, const EngineFacts& engine, const ReshardTarget& target)
    : local_(engine), mesh_{.dp = target.dp, .data_before = target.data_before_experts} {
  // Stage 3 keeps experts with the ranks.
  for (const EngineTensor& tensor : engine.tensors) {
    if (engine.stages.empty() && (tensor.ep == 0 || target.stage == 3)) continue;
    const bool is_fused = tensor.ep > 0 && local_.count(tensor.name) == 0;
    const int64_t experts = is_fused && !tensor.shape.empty() ? tensor.shape.front() : 0;
    numbers_.emplace(tensor.name, wanted_.size());
    wanted_.push_back({.name = tensor.name, .ep = tensor.ep, .experts = experts});
  }
  if (wanted_.empty()) return;
  are_copies_ = !target.param_dtype;
  RankFreeFiles files(inputs, whole);
  if (grid != nullptr && !grid->keeps_slices()) {
    found_ = grid_tensors(*grid, files, target.param_dtype, engine.mp_rank % engine.tp);
  } else {
    take_tensors(files, whole, world, engine, target);
  }
  if (engine.strict) refuse_others(whole, engine);
}

void LiveEntries::take_tensors(RankFreeFiles& files, const Checkpoint& whole,
                               const Checkpoint& world, const EngineFacts& engine,
                               const ReshardTarget& target) {
  const uint32_t tp = whole.facts().mesh.tp;
  const uint32_t tp_rank = engine.mp_rank % tp;
  files.check(world, engine.mp_rank);
  // The file of a tied layer has the values of its first stage.
  for (uint32_t mp_rank = tp_rank; target.param_dtype && mp_rank < whole.facts().mesh.pp * tp;
       mp_rank += tp) {
    files.take_values(whole.world(mp_rank), target);
  }
  found_ = files.tensors(tp_rank);
}

std::string LiveEntries::local_name(const std::string& name) const {
  if (const int64_t count = local_.count(name); count > 0) {
    const auto expert = parse_expert_name(name);
    return expert->with(expert->number % count);
  }
  const std::string front = name.substr(0, std::min(name.size(), name.rfind('.')));
  const auto fused = numbers_.find(front);
  return fused != numbers_.end() && wanted_[fused->second].experts > 0 ? front : name;
}

void LiveEntries::refuse_others(const Checkpoint& whole, const EngineFacts& engine) const {
  KeyedSet<std::string_view> fronts;
  for (const Wanted& wanted : wanted_) fronts.insert(layer_front(wanted.name));
  const std::string* first = nullptr;
  for (const auto& entry : found_) {
    const std::string& name = entry.first;
    if (numbers_.contains(local_name(name))) continue;
    if (!engine.stages.empty() && !fronts.contains(layer_front(name))) continue;  // another stage's
    if (first == nullptr || name < *first) first = &name;
  }
  if (first == nullptr) return;
  throw InconsistentError({.file = whole.tag_folder().string(), .tensor = *first},
                          "is not in the engine");
}

// AutoEP's files have an expert each, without the dimension of the experts.
TensorSource LiveEntries::joined(const Wanted& wanted, uint32_t ep_rank) const {
  std::vector<TensorSource> experts;
  for (int64_t i = 0; i < wanted.experts; ++i) {
    const std::string name = wanted.name + "." + std::to_string(ep_rank * wanted.experts + i);
    const auto found = found_.find(name);
    if (found == found_.end()) {
      throw InconsistentError({.tensor = name}, "is in no file of the checkpoint");
    }
    Shape shape = found->second.shape();
    shape.insert(shape.begin(), 1);
    experts.push_back(found->second.view(shape));
  }
  return TensorSource::cat(0, std::move(experts));
}

std::vector<ModuleEntry> LiveEntries::of(uint32_t rank) const {
  std::vector<ModuleEntry> entries;
  for (const Wanted& wanted : wanted_) {
    ExpertMesh mesh = mesh_;
    mesh.ep = std::max(wanted.ep, uint32_t{1});
    const uint32_t ep_rank = mesh.ep_rank(rank);
    if (wanted.experts > 0) {
      entries.push_back({wanted.name, joined(wanted, ep_rank)});
      continue;
    }
    const int64_t count = local_.count(wanted.name);
    const auto expert = count > 0 ? parse_expert_name(wanted.name) : std::nullopt;
    const auto found =
        found_.find(expert ? expert->with(ep_rank * count + expert->number) : wanted.name);
    if (found != found_.end()) entries.push_back({wanted.name, found->second});
  }
  return entries;
}

}  // namespace dsckpt
