#include "reshard/copies.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "checkpoint/other_values.h"
#include "checkpoint/pipeline_layers.h"
#include "deepspeed/keys.h"
#include "deepspeed/shard_name.h"
#include "dsckpt/error.h"
#include "format/archive_copy.h"
#include "format/checked_records.h"
#include "pickle/python_objects.h"
#include "reshard/run_facts.h"

namespace dsckpt {
using pickle::Kind;
using pickle::Value;
namespace {

using Kinds = ShardName::Kind;

// `tied_modules.KEY.REST`.
std::optional<std::pair<std::string, std::string>> tied_part(const std::string& name) {
  if (!name.starts_with(keys::kTiedModules)) return std::nullopt;
  const size_t dot = name.find('.', keys::kTiedModules.size());
  if (dot == name.npos) return std::nullopt;
  return std::pair(name.substr(keys::kTiedModules.size(), dot - keys::kTiedModules.size()),
                   name.substr(dot + 1));
}

// True if a layer's file may be that of the tied layer `key`, whose `parts` the world has.
bool holds(const TorchArchive& archive, const Checkpoint& world, const std::string& key,
           const std::set<std::string>& parts) {
  const Value root = archive.root();
  return std::all_of(parts.begin(), parts.end(), [&](const std::string& part) {
    const Value tensor = root.find_or_none(part);
    if (!TorchArchive::is_tensor(tensor)) return false;
    const Param* param = world.find("tied_modules." + key + "." + part);
    return param == nullptr || archive.info(tensor).shape == param->weight.shape();
  });
}

// A copy of a file whose tensors get the values of `value_of`; nullopt: as it is.
template <typename F>
TorchArchiveWriter::Written rewritten(const TorchArchive& from, F&& value_of) {
  ArchiveCopy copy(from);
  return copy.write(copy.dict_of(from.root(), [&](std::string_view key, const Value& saved) {
    std::optional<TensorSource> value;
    if (TorchArchive::is_tensor(saved)) value = value_of(key, saved);
    return std::optional(value ? copy.writer().tensor(*value) : copy.of(saved));
  }));
}

// The names of a world's parameters and buffers, wherever their values are.
std::vector<std::string> names_of(const Checkpoint& world) {
  std::vector<std::string> names;
  for (const Param& param : world.params()) names.push_back(param.name);
  for (const Value& name : root_of(world).find_or_none(keys::kBufferNames).sequence_or_empty()) {
    if (name.is(Kind::string)) names.emplace_back(name.as_string());
  }
  return names;
}

}  // namespace

RankFreeFiles::RankFreeFiles(InputFiles& inputs, const Checkpoint& source)
    : inputs_(inputs),
      source_(source),
      mesh_(source.facts().mesh),
      folder_(source.run().tag_folder().string()) {
  const Checkpoint& run = source.run();
  const TagFolder& folder = run.folder();
  std::map<std::filesystem::path, const TorchArchive*> read;
  for (const CheckpointFile& file : run.files().modules) read.emplace(file.path, file.archive);
  std::vector<ShardFile> unread;
  for (const Kinds kind : {Kinds::layer, Kinds::expert}) {
    for (const ShardFile& file : folder.of_kind(kind)) {
      inputs.add_kept(file.path, folder.display_root());  // every record of it is looked at
      const auto found = read.find(file.path);
      if (found == read.end()) {
        unread.push_back(file);
      } else {
        files_.push_back({file.name, file.path, found->second});
      }
    }
  }
  opened_ = open_shards(inputs, unread, folder.display_root());
  for (const Shard& shard : opened_) files_.push_back({shard.name, shard.path, &shard.archive});
  for (const File& file : files_) {
    Layers& layers = layers_[file.name.mp_rank];
    if (file.name.kind == Kinds::layer) layers.numbers.insert(file.name.layer);
    if (file.name.kind == Kinds::expert) layers.experts[file.name.layer].insert(file.name.expert);
  }
  for (const RegridLayer& layer : layers_with_files(run)) {
    layer_names_[layer.index].insert(layer.names.begin(), layer.names.end());
  }
}

const RankFreeFiles::Layers& RankFreeFiles::layers_of(uint32_t mp_rank) const {
  static const Layers kNone;
  const auto found = layers_.find(mp_rank);
  return found == layers_.end() ? kNone : found->second;
}

void RankFreeFiles::find_missing_layers(const Checkpoint& world, uint32_t tp_rank,
                                        MissingFiles& missing) const {
  if (!root_of(world).find_or_none(keys::kModule).is_none()) return;
  std::set<uint32_t> layers;
  std::map<std::string, std::set<std::string>> tied;
  for (const std::string& name : names_of(world)) {
    if (const auto layer = layer_number(name)) layers.insert(*layer);
    if (auto part = tied_part(name)) tied[part->first].insert(std::move(part->second));
  }
  const std::string slice = mesh_.tp > 1 ? "-model_" + two_digits(tp_rank) : "";
  const auto lacks = [&](const std::string& layer, const std::string& why) {
    missing.add("layer_" + layer + slice + "-model_states.pt" + why);
  };
  const std::set<uint32_t>& there = layers_of(tp_rank).numbers;
  for (const uint32_t layer : layers) {
    if (!there.contains(layer)) lacks(two_digits(layer), "");
  }
  for (const auto& layer : tied) {
    const bool found = std::any_of(files_.begin(), files_.end(), [&](const File& file) {
      return file.name.kind == Kinds::layer && file.name.mp_rank == tp_rank &&
             !layers.contains(file.name.layer) &&
             holds(*file.archive, world, layer.first, layer.second);
    });
    if (!found) lacks("*", " of the tied layer '" + layer.first + "'");
  }
}

// Stage 3 keeps experts in the optimizer's files only.
void RankFreeFiles::find_missing_experts(const Checkpoint& world, uint32_t mp_rank,
                                         MissingFiles& missing) const {
  if (world.facts().zero_stage == 3) return;
  const std::map<uint32_t, std::set<uint32_t>>& of_layers = layers_of(mp_rank).experts;
  const auto counts = root_of(world).find_or_none("num_experts").sequence_or_empty();
  for (uint32_t layer = 0; layer < counts.size(); ++layer) {
    const int64_t count = counts[layer].is(Kind::integer) ? counts[layer].as_int() : 0;
    if (count < 1 || count > kMaxExperts) {
      throw CorruptError(
          {.file = world.files().model.front().path.string(), .member = "num_experts"},
          "does not say how many experts layer " + std::to_string(layer) + " has");
    }
    static const std::set<uint32_t> kNone;
    const auto found = of_layers.find(layer);
    const std::set<uint32_t>& there = found == of_layers.end() ? kNone : found->second;
    missing.add_experts(mp_rank, layer, count, there);
  }
}

void RankFreeFiles::check(const Checkpoint& world, uint32_t mp_rank) const {
  MissingFiles missing;
  find_missing_layers(world, mp_rank % mesh_.tp, missing);
  find_missing_experts(world, mp_rank, missing);
  if (missing.count == 0) return;
  throw InconsistentError({.file = folder_}, counted(missing.count, "file") +
                                                 (missing.count == 1 ? " is" : " are") +
                                                 " missing:" + listed(missing.names));
}

// engine.py _save_moe_checkpoint.
void RankFreeFiles::make_experts(const Checkpoint& world, const ReshardTarget& target) {
  const DType dtype = target.param_dtype.value_or(target.saved_param_dtype);
  for (const AutoEpRecord& layer : autoep_records(root_of(world))) {
    std::vector<std::pair<std::string, const Param*>> params;
    for (const std::string& name : layer.fused()) {
      const Param* param = world.find(name);
      if (param == nullptr || param->weight.shape().empty() ||
          param->weight.shape()[0] != layer.num_experts) {
        throw InconsistentError({.file = folder_, .tensor = name},
                                "is not there for " + counted(layer.num_experts, "expert"));
      }
      params.emplace_back(name, param);
    }
    for (int64_t expert = 0; expert < layer.num_experts; ++expert) {
      MadeFile file{.name = {.kind = Kinds::expert,
                             .mp_rank = target.mp_rank,
                             .layer = layer.number,
                             .expert = static_cast<uint32_t>(expert)},
                    .tensors = {}};
      for (const auto& [name, param] : params) {
        const TensorSource& all = param->weight;
        const Shape shape(all.shape().begin() + 1, all.shape().end());
        file.tensors.emplace_back(name + "." + std::to_string(expert),
                                  all.narrow(0, expert, 1).view(shape).to(dtype));
      }
      made_.push_back(std::move(file));
    }
  }
}

void RankFreeFiles::take_values(const Checkpoint& world, const ReshardTarget& target) {
  const CheckpointFacts& facts = world.facts();
  has_expert_files_ = target.stage != 3;
  if (facts.zero_stage == 3 && has_expert_files_) make_experts(world, target);
  param_dtype_ = target.param_dtype;
  if (!param_dtype_ && !facts.has_given_weights() && !facts.from_weights()) return;
  KeyedMap<std::string, TensorSource>& values = values_[target.mp_rank % mesh_.tp];
  for (const Param& param : world.params()) {
    if (is_trained(param)) values.emplace(param.name, param.weight);
  }
}

std::string RankFreeFiles::name_of(const File& file, const std::string& key) const {
  if (file.name.kind != Kinds::layer) return key;
  const auto layer = layer_names_.find(file.name.layer);
  if (layer == layer_names_.end()) return key;
  const auto name = layer->second.find(key);
  return name == layer->second.end() ? key : name->second;
}

std::optional<TensorSource> RankFreeFiles::new_value(const File& file, const std::string& key,
                                                     const TensorSource& saved) const {
  const std::string name = name_of(file, key);
  const uint32_t tp_rank = file.name.mp_rank % mesh_.tp;
  const auto& values = values_.at(tp_rank);
  const DType dtype = param_dtype_.value_or(saved.dtype());
  if (const auto found = values.find(name); found != values.end()) return found->second.to(dtype);
  // AutoEP's, which are one tensor of all experts in the model: "...w1.3".
  const std::string number = "." + std::to_string(file.name.expert);
  if (file.name.kind == Kinds::expert && name.ends_with(number)) {
    const auto all = values.find(name.substr(0, name.size() - number.size()));
    if (all != values.end()) {
      return all->second.narrow(0, file.name.expert, 1).view(saved.shape()).to(dtype);
    }
  }
  const Param* param = source_.find(name);
  if (param == nullptr) {
    throw UnsupportedError(
        {.file = file.path.string(), .tensor = key},
        "is not a parameter or buffer of the model, and would have to get another "
        "value or type");
  }
  std::vector<Param> mine{{.name = name, .kind = param->kind, .weight = saved}};
  give_values(mine, source_, tp_rank);
  if (param->kind == ParamKind::frozen) return mine.front().weight.to(dtype);
  return mine.front().given ? std::optional(mine.front().weight.to(saved.dtype())) : std::nullopt;
}

KeyedMap<std::string, TensorSource> RankFreeFiles::tensors(uint32_t tp_rank) const {
  KeyedMap<std::string, TensorSource> all;
  for (const File& file : files_) {
    if (file.name.mp_rank % mesh_.tp != tp_rank) continue;
    for (const auto& [key, value] : file.archive->root().as_dict().items) {
      if (!key.is(Kind::string) || !TorchArchive::is_tensor(value)) continue;
      const std::string name(key.as_string());
      const TensorSource saved = file.archive->tensor(value);
      const auto changed = values_.empty() ? std::nullopt : new_value(file, name, saved);
      all.emplace(name_of(file, name), changed.value_or(saved));
    }
  }
  for (const MadeFile& file : made_) {
    if (file.name.mp_rank % mesh_.tp != tp_rank) continue;
    for (const auto& [name, value] : file.tensors) all.emplace(name, value);
  }
  return all;
}

void RankFreeFiles::lay_out(PlanBuilder& plan, const std::string& folder) const {
  for (const MadeFile& file : made_) {
    TorchArchiveWriter writer;
    const Value root = writer.document().dict();
    for (const auto& [name, value] : file.tensors) {
      writer.document().set_item(root, writer.document().string(name), writer.tensor(value));
    }
    writer.document().set_root(root);
    TorchArchiveWriter::lay_out(std::move(writer).write(), plan,
                                folder + "/" + file.name.file_name());
  }
  for (const File& file : files_) {
    if (file.name.kind == Kinds::expert && !has_expert_files_) continue;
    const std::string path = folder + "/" + file.path.filename().string();
    if (!values_.empty()) {
      const auto value_of = [&](std::string_view key, const Value& saved) {
        return new_value(file, std::string(key), file.archive->tensor(saved));
      };
      TorchArchiveWriter::lay_out(rewritten(*file.archive, value_of), plan, path);
      continue;
    }
    const uint64_t size = inputs_[file.archive->file()].size();
    put_file(plan, plan.add_output(path, size), *file.archive, size);
  }
}

namespace {

std::string layer_file_name(const RegridLayer& layer, const Mesh& mesh, uint32_t tp_rank) {
  const bool has_suffix = layer.has_model_suffix || mesh.tp > 1;
  return "layer_" + two_digits(layer.index) + (has_suffix ? "-model_" + two_digits(tp_rank) : "") +
         "-model_states.pt";
}

// The type that parameters are rounded to from the masters; nullopt if they have copies.
std::optional<DType> dtype_from_masters(const Regrid& grid, const ReshardTarget& target) {
  if (grid.is_universal()) return target.param_dtype.value_or(target.saved_param_dtype);
  return target.param_dtype;
}

// The value of a parameter in a file of a layer or an expert. `files` are the checkpoint's, by
// tensor-parallel rank, which have it under `key`.
TensorSource value_for(const Regrid& grid, const Param& param, std::string_view key,
                       const std::vector<const TorchArchive*>& files,
                       std::optional<DType> param_dtype, uint32_t tp_rank) {
  if (param_dtype && param.kind != ParamKind::buffer) {
    return grid.slice(param, tp_rank).weight.to(*param_dtype);
  }
  if (files.empty()) return grid.slice(param, tp_rank).weight;
  std::vector<TensorSource> copies;
  for (const TorchArchive* file : files) copies.push_back(file->tensor(file->root().at(key)));
  return grid.slice_of_copies(param, copies, tp_rank);
}

TorchArchiveWriter::Written make_layer(const Regrid& grid, const RegridLayer& layer,
                                       std::optional<DType> param_dtype, uint32_t tp_rank) {
  TorchArchiveWriter writer;
  pickle::Document& document = writer.document();
  const Value root = ordered_dict(document);
  for (const auto& [key, name] : layer.names) {
    const TensorSource value = value_for(grid, grid.param(name), key, {}, param_dtype, tp_rank);
    document.set_item(root, document.string(key), writer.tensor(value));
  }
  document.set_root(root);
  return std::move(writer).write();
}

TorchArchiveWriter::Written write_layer(const Regrid& grid, const RegridLayer& layer,
                                        std::optional<DType> param_dtype, uint32_t tp_rank) {
  if (layer.files.empty()) return make_layer(grid, layer, param_dtype, tp_rank);
  const std::map<std::string_view, std::string> names(layer.names.begin(), layer.names.end());
  return rewritten(*layer.files[grid.base_tp(tp_rank)],
                   [&](std::string_view key, const Value&) -> std::optional<TensorSource> {
                     const auto name = names.find(key);
                     if (name == names.end()) return std::nullopt;
                     const Param& param = grid.param(name->second);
                     return value_for(grid, param, key, layer.files, param_dtype, tp_rank);
                   });
}

// An expert's file that a new rank continues from, and those of all tensor-parallel ranks.
struct ExpertFile {
  const RankFreeFiles::File* file;
  std::vector<const TorchArchive*> copies;
};

std::vector<ExpertFile> expert_files(const Regrid& grid, const RankFreeFiles& files,
                                     uint32_t tp_rank) {
  // By layer and number of the expert.
  std::map<std::pair<uint32_t, uint32_t>, ExpertFile> experts;
  for (const RankFreeFiles::File& file : files.files()) {
    if (file.name.kind != ShardName::Kind::expert) continue;
    ExpertFile& expert = experts[{file.name.layer, file.name.expert}];
    expert.copies.push_back(file.archive);
    if (file.name.mp_rank == grid.base_tp(tp_rank)) expert.file = &file;
  }
  std::vector<ExpertFile> found;
  for (auto& [number, expert] : experts) {
    if (expert.file != nullptr) found.push_back(std::move(expert));
  }
  return found;
}

}  // namespace

void lay_out_grid_experts(PlanBuilder& plan, const Regrid& grid, const RankFreeFiles& files,
                          const ReshardTarget& target, const std::string& folder) {
  const std::optional<DType> param_dtype = dtype_from_masters(grid, target);
  for (uint32_t tp_rank = 0; tp_rank < grid.mesh().tp; ++tp_rank) {
    for (const ExpertFile& expert : expert_files(grid, files, tp_rank)) {
      ShardName name = expert.file->name;
      name.mp_rank = tp_rank;
      const auto value_of = [&](std::string_view key, const Value&) {
        const Param& param = grid.param(std::string(key));
        return value_for(grid, param, key, expert.copies, param_dtype, tp_rank);
      };
      TorchArchiveWriter::lay_out(rewritten(*expert.file->archive, value_of), plan,
                                  folder + "/" + name.file_name());
    }
  }
}

void lay_out_grid_layers(PlanBuilder& plan, const Regrid& grid, const ReshardTarget& target,
                         const std::string& folder) {
  const std::optional<DType> param_dtype = dtype_from_masters(grid, target);
  for (const RegridLayer& layer : grid.layers()) {
    for (uint32_t tp_rank = 0; tp_rank < grid.mesh().tp; ++tp_rank) {
      TorchArchiveWriter::lay_out(write_layer(grid, layer, param_dtype, tp_rank), plan,
                                  folder + "/" + layer_file_name(layer, grid.mesh(), tp_rank));
    }
  }
}

KeyedMap<std::string, TensorSource> grid_tensors(const Regrid& grid, const RankFreeFiles& files,
                                                 const ReshardTarget& target, uint32_t tp_rank) {
  const std::optional<DType> param_dtype = dtype_from_masters(grid, target);
  KeyedMap<std::string, TensorSource> all;
  const auto add = [&](std::string_view key, const std::string& name,
                       const std::vector<const TorchArchive*>& copies) {
    all.emplace(name, value_for(grid, grid.param(name), key, copies, param_dtype, tp_rank));
  };
  for (const RegridLayer& layer : grid.layers()) {
    for (const auto& [key, name] : layer.names) add(key, name, layer.files);
  }
  for (const ExpertFile& expert : expert_files(grid, files, tp_rank)) {
    for (const auto& [key, value] : expert.file->archive->root().as_dict().items) {
      if (!key.is(Kind::string) || !TorchArchive::is_tensor(value)) continue;
      add(key.as_string(), std::string(key.as_string()), expert.copies);
    }
  }
  return all;
}

}  // namespace dsckpt
