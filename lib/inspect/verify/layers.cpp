// Checks files that do not belong to a rank: layers of a pipeline, experts and their optimizers.
// See engine.py _get_expert_ckpt_name, _get_optimizer_ckpt_name; pipe/module.py ckpt_layer_path.

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/text.h"
#include "checkpoint/model_states.h"
#include "deepspeed/keys.h"
#include "inspect/verify/verification.h"

namespace dsckpt {
namespace {

using Kind = ShardName::Kind;

std::string folder_name(const Verification& v) {
  return v.folder.path.lexically_relative(v.folder.path.parent_path()).string();
}

std::string number(uint32_t value, size_t width) {
  std::string text = std::to_string(value);
  return std::string(width - std::min(width, text.size()), '0') + text;
}

// Returns the layers of a pipeline that param_shapes names ("3.fc.weight").
std::set<uint32_t> named_layers(Verification& v) {
  std::set<uint32_t> layers;
  for (CheckedFile* file : v.of_kind(Kind::model_states)) {
    v.attempt(Check::layout, *file, [&] {
      for (const std::string& name : ModelStates(*file->shard).trainable_names) {
        const size_t digits = name.find_first_not_of("0123456789");
        if (digits == 0 || digits > 6 || name[digits] != '.') continue;
        layers.insert(static_cast<uint32_t>(std::stoul(name)));
      }
    });
  }
  return layers;
}

// Returns the number of tensor-parallel ranks in the model's files, for pipelines without layer
// files.
uint32_t tensor_parallel_ranks(Verification& v) {
  int64_t ranks = 1;
  for (const CheckedFile* file : v.of_kind(Kind::model_states)) {
    const pickle::Value degree = file->shard->archive.root()
                                     .find_or_none(keys::kCheckpointParallelDimensions)
                                     .find_or_none("tp_degree");
    if (degree.is(pickle::Kind::integer)) ranks = std::max(ranks, degree.as_int());
  }
  return static_cast<uint32_t>(std::min(ranks, static_cast<int64_t>(kMaxMissing)));
}

void check_layers(Verification& v) {
  const bool none = !v.folder.has(Kind::layer);
  const std::vector<CheckedFile*> models = v.of_kind(Kind::model_states);
  if (none && std::none_of(models.begin(), models.end(),
                           [](const CheckedFile* file) { return is_of_pipeline(*file->shard); })) {
    return;
  }
  std::map<uint32_t, std::set<uint32_t>> found;
  bool sliced = false;
  uint32_t tp = 1;
  for (const CheckedFile& file : v.files) {
    if (!file.name || file.name->kind != Kind::layer) continue;
    found[file.name->layer].insert(file.name->mp_rank);
    tp = std::max(tp, file.name->mp_rank + 1);
    sliced = sliced || file.path.filename().string().find("-model_0") != std::string::npos;
  }
  if (none) {
    tp = tensor_parallel_ranks(v);
    sliced = tp > 1;
  }
  for (const uint32_t layer : named_layers(v)) found[layer];
  if (found.empty()) {
    v.add({.check = Check::missing,
           .message = "is not there: the model is a pipeline, but there is no file of any layer",
           .file = folder_name(v) + "/layer_00-model_states.pt"});
  }
  size_t missing = 0;
  for (const auto& [layer, ranks] : found) {
    for (uint32_t rank = 0; rank < tp; ++rank) {
      if (ranks.contains(rank)) continue;
      if (++missing > kMaxMissing) return;
      v.add({.check = Check::missing,
             .message = "is not there: the pipeline has such a layer",
             .file = folder_name(v) + "/layer_" + number(layer, 2) +
                     (sliced ? "-model_" + number(rank, 2) : "") + "-model_states.pt"});
    }
  }
}

// Returns num_experts of each MoE layer, if a model-states file has it.
std::vector<int64_t> experts_of_layers(Verification& v) {
  std::vector<int64_t> counts;
  for (CheckedFile* file : v.of_kind(Kind::model_states)) {
    const pickle::Value all = file->shard->archive.root().find_or_none("num_experts");
    for (const pickle::Value& count : all.sequence_or_empty()) {
      counts.push_back(count.is(pickle::Kind::integer) ? count.as_int() : 0);
    }
    if (!counts.empty()) break;
  }
  return counts;
}

void check_experts(Verification& v) {
  const std::vector<int64_t> counts = experts_of_layers(v);
  if (counts.empty()) return;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> found;  // layer, expert -> mp rank
  for (CheckedFile& file : v.files) {
    if (!file.name || file.name->kind != Kind::expert) continue;
    found.emplace(std::pair(file.name->layer, file.name->expert), file.name->mp_rank);
    const uint32_t layer = file.name->layer;
    if (layer < counts.size() && file.name->expert < counts[layer]) continue;
    v.add(Check::extra, file, "", "the model has no such expert");
    file.left_out = true;
  }
  size_t missing = 0;
  for (uint32_t layer = 0; layer < counts.size(); ++layer) {
    if (counts[layer] > static_cast<int64_t>(kMaxMissing)) continue;
    for (uint32_t expert = 0; expert < counts[layer]; ++expert) {
      if (found.contains({layer, expert})) continue;
      if (++missing > kMaxMissing) return;
      v.add({.check = Check::missing,
             .message = "is not there: the layer has " + counted(counts[layer], "expert"),
             .file = folder_name(v) + "/layer_" + std::to_string(layer) + "_expert_" +
                     std::to_string(expert) + "_mp_rank_00_model_states.pt"});
    }
  }
}

// Returns the number of ranks that share the experts. It follows from the number of parameters in
// an optimizer without ZeRO: all parameters outside experts, and its own rank's experts.
std::optional<uint32_t> expert_parallel_ranks(Verification& v, const CheckedFile& model_file,
                                              const CheckedFile& optim) {
  ModelStates model(*model_file.shard);
  model.find_tied_views();
  const std::vector<int64_t> experts = experts_of_layers(v);
  const int64_t dp = model.fields.integer_if_any(keys::kDpWorldSize).value_or(0);
  if (experts.empty() || !model.fields.sequence(keys::kAutoEpLayers).empty()) return std::nullopt;
  std::vector<int64_t> tensors(experts.size());  // of one expert in each layer
  for (const CheckedFile* file : v.of_kind(Kind::expert)) {
    if (file->name->layer >= tensors.size() || !file->shard->archive.root().is_mapping()) continue;
    tensors[file->name->layer] =
        static_cast<int64_t>(file->shard->archive.root().as_dict().items.size());
  }
  int64_t owned = 0;
  const pickle::Value optimizer = optim.shard->archive.root().find_or_none(keys::kOptimizer);
  for (const auto& group : optimizer.find_or_none(keys::kParamGroups).sequence_or_empty()) {
    owned += static_cast<int64_t>(group.find_or_none("params").sequence_or_empty().size());
  }
  const auto dense = static_cast<int64_t>(model.rest_of_module().size());
  if (dp < 1) return std::nullopt;
  // A file may claim any counts, so sums are checked for overflow.
  int64_t all = dense;
  int64_t common = dp;  // its divisors divide every count
  for (size_t i = 0; i < experts.size(); ++i) {
    if (experts[i] < 0) return std::nullopt;
    int64_t of_layer = 0;
    if (__builtin_mul_overflow(experts[i], tensors[i], &of_layer)) return std::nullopt;
    if (__builtin_add_overflow(all, of_layer, &all)) return std::nullopt;
    common = std::gcd(common, experts[i]);
  }
  for (int64_t ranks = 1; ranks <= std::min<int64_t>(dp, kMaxMissing); ++ranks) {
    const bool even = common % ranks == 0;
    if (even && dense + (all - dense) / ranks == owned) return static_cast<uint32_t>(ranks);
  }
  return std::nullopt;
}

// Without ZeRO every expert-parallel rank has its own optimizer file.
void check_expert_optimizers(Verification& v) {
  std::set<uint32_t> found;
  for (const CheckedFile& file : v.files) {
    if (file.name && file.name->kind == Kind::expert_optim) found.insert(file.name->dp_rank);
  }
  if (found.empty()) return;
  uint32_t count = *found.rbegin() + 1;
  const std::vector<CheckedFile*> models = v.of_kind(Kind::model_states);
  const std::vector<CheckedFile*> optims = v.of_kind(Kind::expert_optim);
  if (!models.empty() && !optims.empty()) {
    v.attempt(Check::layout, *models.front(), [&] {
      count =
          std::max(count, expert_parallel_ranks(v, *models.front(), *optims.front()).value_or(0));
    });
  }
  if (count > kMaxMissing) return;
  for (uint32_t rank = 0; rank < count; ++rank) {
    if (found.contains(rank)) continue;
    const ShardName name{.kind = Kind::expert_optim, .dp_rank = rank};
    v.add({.check = Check::missing,
           .message = "is not there: the experts are spread over " + counted(count, "rank"),
           .file = folder_name(v) + "/" + name.file_name(),
           .rank = FindingRank{rank, 0}});
  }
}

}  // namespace

void check_layer_files(Verification& v) {
  check_layers(v);
  check_experts(v);
  check_expert_optimizers(v);
}

}  // namespace dsckpt
