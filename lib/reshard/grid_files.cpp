#include "reshard/grid_files.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "deepspeed/shard_name.h"
#include "format/archive_copy.h"

namespace dsckpt {
using pickle::Value;
namespace {

std::string layer_file_name(const RegridLayer& layer, const Mesh& mesh, uint32_t tp_rank) {
  const bool has_suffix = layer.has_model_suffix || mesh.tp > 1;
  return "layer_" + two_digits(layer.index) + (has_suffix ? "-model_" + two_digits(tp_rank) : "") +
         "-model_states.pt";
}

// The value of a parameter in a file of a layer or an expert. `files` are the checkpoint's, by
// tensor-parallel rank, which have it under `key`.
TensorSource value_for(const Regrid& grid, const Param& param, std::string_view key,
                       const std::vector<const TorchArchive*>& files,
                       std::optional<DType> param_dtype, uint32_t tp_rank) {
  if (param_dtype && param.kind != ParamKind::buffer) {
    return grid.slice(param, tp_rank).weight.to(*param_dtype);
  }
  std::vector<TensorSource> copies;
  for (const TorchArchive* file : files) copies.push_back(file->tensor(file->root().at(key)));
  return grid.slice_of_copies(param, copies, tp_rank);
}

TorchArchiveWriter::Written write_layer(const Regrid& grid, const RegridLayer& layer,
                                        std::optional<DType> param_dtype, uint32_t tp_rank) {
  const TorchArchive& from = *layer.files[grid.base_tp(tp_rank)];
  ArchiveCopy copy(from);
  std::map<std::string_view, std::string_view> names(layer.names.begin(), layer.names.end());
  return copy.write(copy.dict_of(from.root(), [&](std::string_view key, const Value& saved) {
    const auto name = names.find(key);
    if (name == names.end()) return std::optional(copy.of(saved));
    const Param& param = grid.param(std::string(name->second));
    return std::optional(
        copy.writer().tensor(value_for(grid, param, key, layer.files, param_dtype, tp_rank)));
  }));
}

TorchArchiveWriter::Written write_expert(const Regrid& grid, const TorchArchive& from,
                                         const std::vector<const TorchArchive*>& files,
                                         std::optional<DType> param_dtype, uint32_t tp_rank) {
  ArchiveCopy copy(from);
  return copy.write(copy.dict_of(from.root(), [&](std::string_view key, const Value& saved) {
    if (!TorchArchive::is_tensor(saved)) return std::optional(copy.of(saved));
    const Param& param = grid.param(std::string(key));
    return std::optional(
        copy.writer().tensor(value_for(grid, param, key, files, param_dtype, tp_rank)));
  }));
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
                          std::optional<DType> param_dtype, const std::string& folder) {
  for (uint32_t tp_rank = 0; tp_rank < grid.mesh().tp; ++tp_rank) {
    for (const ExpertFile& expert : expert_files(grid, files, tp_rank)) {
      ShardName name = expert.file->name;
      name.mp_rank = tp_rank;
      TorchArchiveWriter::lay_out(
          write_expert(grid, *expert.file->archive, expert.copies, param_dtype, tp_rank), plan,
          folder + "/" + name.file_name());
    }
  }
}

void lay_out_grid_layers(PlanBuilder& plan, const Regrid& grid, std::optional<DType> param_dtype,
                         const std::string& folder) {
  for (const RegridLayer& layer : grid.layers()) {
    for (uint32_t tp_rank = 0; tp_rank < grid.mesh().tp; ++tp_rank) {
      TorchArchiveWriter::lay_out(write_layer(grid, layer, param_dtype, tp_rank), plan,
                                  folder + "/" + layer_file_name(layer, grid.mesh(), tp_rank));
    }
  }
}

KeyedMap<std::string, TensorSource> grid_tensors(const Regrid& grid, const RankFreeFiles& files,
                                                 std::optional<DType> param_dtype,
                                                 uint32_t tp_rank) {
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
      if (!key.is(pickle::Kind::string) || !TorchArchive::is_tensor(value)) continue;
      add(key.as_string(), std::string(key.as_string()), expert.copies);
    }
  }
  return all;
}

}  // namespace dsckpt
