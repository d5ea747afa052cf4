#include "reshard/grid_files.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
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

std::vector<TensorSource> copies_of(const RegridLayer& layer, std::string_view key) {
  std::vector<TensorSource> copies;
  for (const TorchArchive* file : layer.files) {
    copies.push_back(file->tensor(file->root().at(key)));
  }
  return copies;
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
    if (param_dtype && param.kind != ParamKind::buffer) {
      return std::optional(
          copy.writer().tensor(grid.slice(param, tp_rank).weight.to(*param_dtype)));
    }
    return std::optional(
        copy.writer().tensor(grid.slice_of_copies(param, copies_of(layer, key), tp_rank)));
  }));
}

// The copies of masters.
TorchArchiveWriter::Written write_expert(const Regrid& grid, const TorchArchive& from,
                                         std::optional<DType> param_dtype, uint32_t tp_rank) {
  ArchiveCopy copy(from);
  return copy.write(copy.dict_of(from.root(), [&](std::string_view key, const Value& saved) {
    if (!TorchArchive::is_tensor(saved)) return std::optional(copy.of(saved));
    const Param made = grid.slice(grid.param(std::string(key)), tp_rank);
    const DType dtype = param_dtype.value_or(from.info(saved).dtype);
    return std::optional(copy.writer().tensor(made.weight.to(dtype)));
  }));
}

}  // namespace

void lay_out_grid_experts(PlanBuilder& plan, const Regrid& grid, const RankFreeFiles& files,
                          std::optional<DType> param_dtype, const std::string& folder) {
  for (uint32_t tp_rank = 0; tp_rank < grid.mesh().tp; ++tp_rank) {
    for (const RankFreeFiles::File& file : files.files()) {
      if (file.name.kind != ShardName::Kind::expert) continue;
      if (file.name.mp_rank != grid.base_tp(tp_rank)) continue;
      ShardName name = file.name;
      name.mp_rank = tp_rank;
      TorchArchiveWriter::lay_out(write_expert(grid, *file.archive, param_dtype, tp_rank), plan,
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

}  // namespace dsckpt
