// Compares 16-bit weights with the rounded masters.

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/bytes.h"
#include "base/kernels.h"
#include "base/text.h"
#include "checkpoint/module_entries.h"
#include "checkpoint/optim_states.h"
#include "deepspeed/keys.h"
#include "deepspeed/run_config.h"
#include "format/read_tensor.h"
#include "inspect/ask.h"
#include "inspect/verify/flat_files.h"
#include "inspect/verify/verification.h"

namespace dsckpt {
namespace {

using Kind = ShardName::Kind;
using pickle::Value;

// A 16-bit weight and the master that it was rounded from.
struct Weight {
  std::string name;
  TensorSource stored;
  TensorSource master;
};

// Finds the 16-bit weights of world `mp_rank`: in its model-states file or, for a pipeline, in the
// file of the layer.
class ModuleFiles {
 public:
  ModuleFiles(Verification& v, const Shard& model)
      : v_(v), model_(model), module_(model.archive.root().find_or_none(keys::kModule)) {
    slice_ = model.name.mp_rank % tensor_parallel_ranks();
    for (const CheckedFile* file : v.of_kind(Kind::layer, slice_)) {
      layers_.emplace(file->name->layer, file);
    }
  }

  std::optional<TensorSource> find(const std::string& name) {
    if (!is_of_pipeline(model_)) return tensor_of(model_, module_.find(name));
    const size_t dot = name.find('.');
    if (dot == 0 || dot > 6 || name.find_first_not_of("0123456789") != dot) return std::nullopt;
    const auto layer = static_cast<uint32_t>(std::stoul(name));
    const auto found = layers_.find(layer);
    if (found == layers_.end()) return std::nullopt;
    const Shard& shard = *found->second->shard;
    return tensor_of(shard, shard.archive.root().find_or_none(name.substr(dot + 1)));
  }

 private:
  // Returns the number for a pipeline, whose layers have files of their own.
  uint32_t tensor_parallel_ranks() const {
    const Value dimensions =
        model_.archive.root().find_or_none(keys::kCheckpointParallelDimensions);
    const Value tp = dimensions.find_or_none("tp_degree");
    if (tp.is(pickle::Kind::integer) && tp.as_int() > 0) {
      return static_cast<uint32_t>(std::min<int64_t>(tp.as_int(), 1 << 20));
    }
    uint32_t last = 0;  // older releases do not record dimensions
    for (const CheckedFile& file : v_.files) {
      if (file.name && file.name->kind == Kind::layer) last = std::max(last, file.name->mp_rank);
    }
    return last + 1;
  }

  static std::optional<TensorSource> tensor_of(const Shard& shard, const Value& value) {
    if (!TorchArchive::is_tensor(value)) return std::nullopt;
    return if_supported([&] { return shard.archive.tensor(value); });
  }

  Verification& v_;
  const Shard& model_;
  ModuleEntries module_;
  uint32_t slice_ = 0;
  std::map<uint32_t, const CheckedFile*> layers_;  // of the slice
};

bool can_compare(const TensorSource& stored, const TensorSource& master) {
  return stored.shape() == master.shape() &&
         (stored.dtype() == master.dtype() || can_convert(master.dtype(), stored.dtype()));
}

// Returns the weights of one world whose masters its ranks share. Experts differ on each rank and
// are left out: only the readers know their names.
std::vector<Weight> weights_of_world(Verification& v, CheckedFile& model_file) {
  const ModelStates model(*model_file.shard);
  const std::vector<CheckedFile*> optim = v.of_kind(Kind::optim_states, model_file.name->mp_rank);
  std::vector<Weight> weights;
  if (optim.empty()) return weights;
  std::vector<std::vector<FlatTensor>> tensors;
  for (const CheckedFile* file : optim) tensors.push_back(flat_tensors(*file->shard));
  const std::vector<int64_t> counts = partition_counts(optimizer_state(*optim.front()->shard));
  ModuleFiles module(v, *model_file.shard);
  // If param_shapes has more groups, the reader reports it.
  size_t groups = std::min(model.param_shapes.size(), counts.empty() ? 0 : SIZE_MAX);
  for (const auto& of_rank : tensors) groups = std::min(groups, of_rank.size());
  for (size_t g = 0; g < groups; ++g) {
    const int64_t count = g < counts.size() ? counts[g] : counts.front();
    if (count != static_cast<int64_t>(optim.size())) continue;
    std::vector<TensorSource> parts;
    for (size_t r = 0; r < optim.size(); ++r) {
      parts.push_back(flat_masters(*optim[r]->shard, tensors[r][g].masters));
    }
    const TensorSource flat = TensorSource::cat(0, std::move(parts));
    for (const FlatSlice& slice : flat_slices(model, *optim.front()->shard, g)) {
      if (slice.begin + slice.numel > static_cast<uint64_t>(flat.numel())) break;
      const auto stored = module.find(slice.name);
      if (!stored) continue;
      const TensorSource master =
          flat.narrow(0, static_cast<int64_t>(slice.begin), static_cast<int64_t>(slice.numel))
              .view(slice.shape);
      if (can_compare(*stored, master)) weights.push_back({slice.name, *stored, master});
    }
  }
  return weights;
}

// Returns the first wrong element of each weight.
std::vector<NotRounded> not_rounded(Verification& v, const std::vector<Weight>& weights) {
  std::vector<PassItem> items;
  for (const Weight& weight : weights) {
    items.push_back({weight.name, {{&v.inputs, weight.stored}, {&v.inputs, weight.master}}});
  }
  return ask(items, NotRoundedQuestion(), v.reading());
}

std::string text_of(Verification& v, const TensorSource& source, int64_t at) {
  std::byte bytes[16];
  float value = 0;
  const size_t size = size_of(source.dtype());
  read_elements(v.inputs, source, at, 1, std::span(bytes).first(size));
  if (source.dtype() == DType::float32) {
    std::memcpy(&value, bytes, sizeof value);
  } else {
    convert(source.dtype(), DType::float32, bytes, reinterpret_cast<std::byte*>(&value), 1);
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", static_cast<double>(value));
  return text;
}

void report_weight(Verification& v, const Weight& weight, int64_t at) {
  Finding finding{.check = Check::rounding, .message = {}, .file = {}};
  v.set_place(finding, place_of(weight.stored, at));
  finding.tensor = weight.name;
  const auto master = place_of(weight.master, at);
  finding.message = "element " + std::to_string(at) + " is " + text_of(v, weight.stored, at) +
                    ", not the rounding of its master " + text_of(v, weight.master, at);
  if (master) {
    finding.message +=
        " at byte " + std::to_string(master->offset) + " of " + v.inputs[master->file].display();
  }
  v.add(std::move(finding));
}

// The number of weights in a file, and those with wrong elements.
struct Tally {
  size_t all = 0;
  std::vector<size_t> wrong;
};

// A file of another save differs almost everywhere, which is reported as one finding.
std::set<size_t> report_stale_files(Verification& v, const std::vector<Weight>& weights,
                                    const std::vector<NotRounded>& found) {
  // Weights count for each file that holds a part of their masters.
  std::map<FileId, Tally> tallies;
  Tally all;
  for (size_t i = 0; i < weights.size(); ++i) {
    std::set<FileId> files;
    weights[i].master.without_repeats().lower([&](const SourceRun& run) {
      if (!run.sources().empty()) files.insert(run.sources().front().file);
    });
    for (const FileId id : files) ++tallies[id].all;
    ++all.all;
    if (!found[i].first) continue;
    all.wrong.push_back(i);
    if (const auto place = place_of(weights[i].master, *found[i].first)) {
      tallies[place->file].wrong.push_back(i);
    }
  }
  std::set<size_t> explained;
  const auto most = [](const Tally& tally) {
    return tally.wrong.size() > 2 && 2 * tally.wrong.size() > tally.all;
  };
  const auto report = [&](FileId id, const Tally& tally, const std::string& whose) {
    const CheckedFile* file = v.file_of(id);
    if (file == nullptr) return;
    v.add({.check = Check::rounding,
           .message = std::to_string(tally.wrong.size()) + " of " + counted(tally.all, "weight") +
                      " are not the roundings of their masters: " + whose + " is from another save",
           .file = file->display,
           .rank = file->rank(),
           .tensor = weights[tally.wrong.front()].name});
    explained.insert(tally.wrong.begin(), tally.wrong.end());
  };
  const auto bad = std::count_if(tallies.begin(), tallies.end(),
                                 [&](const auto& entry) { return most(entry.second); });
  if (bad > 0 && static_cast<size_t>(bad) < tallies.size()) {
    for (const auto& [id, tally] : tallies) {
      if (most(tally)) report(id, tally, "this rank's file");
    }
  } else if (most(all)) {
    if (const auto place = place_of(weights[all.wrong.front()].stored, 0)) {
      report(place->file, all, "this file, or those of all ranks,");
    }
  }
  return explained;
}

void check_weights_of(Verification& v, std::vector<Weight> weights) {
  std::erase_if(weights, [&](const Weight& weight) {
    return v.is_doubtful(weight.stored) || v.is_doubtful(weight.master);
  });
  const std::vector<NotRounded> found = not_rounded(v, weights);
  const std::set<size_t> explained = report_stale_files(v, weights, found);
  for (size_t i = 0; i < weights.size(); ++i) {
    if (found[i].first && !explained.contains(i)) report_weight(v, weights[i], *found[i].first);
  }
}

// Returns the weights of a universal checkpoint, whose masters are whole.
std::vector<Weight> universal_weights(Verification& v) {
  std::vector<Weight> weights;
  const std::vector<CheckedFile*> models = v.of_kind(Kind::model_states);
  if (!v.checkpoint || models.size() != 1) return weights;
  ModuleFiles module(v, *models.front()->shard);
  for (const Param& param : v.checkpoint->params()) {
    if (!is_trained(param)) continue;
    const auto stored = module.find(param.name);
    if (stored && can_compare(*stored, param.weight)) {
      weights.push_back({param.name, *stored, param.weight});
    }
  }
  return weights;
}

// Returns the weights in files of single experts. Only the reader can name them. DeepSpeed's own
// experts have their global number in the name, AutoEP's have it after the name of the fused
// parameter.
std::vector<Weight> expert_weights(Verification& v) {
  std::vector<Weight> weights;
  if (!v.checkpoint) return weights;
  for (const CheckedFile* file : v.of_kind(Kind::expert)) {
    const Value root = file->shard->archive.root();
    if (!root.is_mapping()) continue;
    for (const auto& [key, value] : root.as_dict().items) {
      if (!key.is(pickle::Kind::string) || !TorchArchive::is_tensor(value)) continue;
      const std::string name(key.as_string());
      const auto stored =
          if_supported([&, &tensor = value] { return file->shard->archive.tensor(tensor); });
      if (!stored) continue;
      std::optional<TensorSource> master;
      if (const Param* param = v.checkpoint->find(name)) {
        master = param->weight;
      } else if (const Param* fused = v.checkpoint->find(name.substr(0, name.rfind('.')))) {
        const Shape& shape = fused->weight.shape();
        if (shape.empty() || file->name->expert >= shape[0] ||
            stored->numel() * shape[0] != fused->weight.numel()) {
          continue;
        }
        master = fused->weight.narrow(0, file->name->expert, 1).view(stored->shape());
      }
      if (master && can_compare(*stored, *master)) weights.push_back({name, *stored, *master});
    }
  }
  return weights;
}

}  // namespace

void check_rounding(Verification& v) {
  if (v.checkpoint && v.checkpoint->run_config().zenflow) {
    return v.skip(Check::rounding,
                  "under ZenFlow the weights run ahead of the masters between two updates");
  }
  if (v.report.form == "universal") return check_weights_of(v, universal_weights(v));
  for (CheckedFile* file : v.of_kind(Kind::model_states)) {
    // Positions of parameters are known only with the files of all ranks.
    const bool all = !v.has(Check::missing) &&
                     std::all_of(v.files.begin(), v.files.end(), [](const CheckedFile& other) {
                       return other.left_out || other.usable();
                     });
    if (!all) {
      v.skip(Check::rounding, "not all files are fit to be compared");
      return;
    }
    v.attempt(Check::layout, *file, [&] {
      if (v.of_kind(Kind::optim_states, file->name->mp_rank).empty()) return;
      check_weights_of(v, weights_of_world(v, *file));
    });
  }
  check_weights_of(v, expert_weights(v));
}

}  // namespace dsckpt
