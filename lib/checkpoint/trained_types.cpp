#include "checkpoint/trained_types.h"

#include "checkpoint/checkpoint.h"
#include "checkpoint/module_entries.h"
#include "deepspeed/keys.h"
#include "format/torch_archive.h"

namespace dsckpt {

std::set<DType> trained_types(const Checkpoint& checkpoint) {
  std::set<DType> types;
  if (checkpoint.files().model.empty()) {  // another framework's checkpoint has no copies
    for (const Param& param : checkpoint.params()) {
      if (is_trained(param)) types.insert(param.weight.dtype());
    }
  }
  for (const CheckpointFile& file : checkpoint.files().model) {
    const ModuleEntries module(file.archive->root().find_or_none(keys::kModule));
    for (const auto& [name, value] : module.all()) {
      if (!TorchArchive::is_tensor(value)) continue;
      const Param* param = checkpoint.find(name);
      if (param && param->kind == ParamKind::trainable) {
        types.insert(file.archive->info(value).dtype);
      }
    }
    if (!types.empty()) break;
  }
  if (!types.empty()) return types;
  for (const CheckpointFile& layer : checkpoint.files().modules) {
    const ModuleEntries entries(layer.archive->root());
    for (const auto& [name, value] : entries.all()) {
      if (!TorchArchive::is_tensor(value)) continue;
      const DType type = layer.archive->info(value).dtype;
      if (is_floating_point(type)) types.insert(type);
    }
    if (!types.empty()) break;
  }
  return types;
}

}  // namespace dsckpt
