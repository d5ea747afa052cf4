
#include "base/keyed_hash.h"
#include "format/torch_archive.h"
#include "weights/weights_format.h"

namespace dsckpt {
namespace {

void lay_out_pytorch_model(PlanBuilder& plan, std::string path,
                           std::span<const OutputTensor> tensors,
                           const std::map<std::string, std::string>& /*metadata*/) {
  TorchArchiveWriter writer;
  pickle::Document& document = writer.document();
  pickle::Value root = document.dict();
  KeyedMap<std::string_view, TorchArchiveWriter::StorageId> storages;
  for (const OutputTensor& tensor : tensors) {
    const std::string_view owner = tensor.alias_of.empty() ? tensor.name : tensor.alias_of;
    auto storage = storages.find(owner);
    if (storage == storages.end()) {
      storage = storages.emplace(owner, writer.storage(tensor.source)).first;
    }
    document.set_item(root, document.string(tensor.name),
                      writer.tensor(storage->second, tensor.source.shape()));
  }
  document.set_root(root);
  std::move(writer).lay_out(plan, std::move(path));
}

}  // namespace

const WeightsFormat kTorchBin{.name = "bin",
                              .stem = "pytorch_model",
                              .extension = ".bin",
                              .index_name = "pytorch_model.bin.index.json",
                              .shares_storage = true,
                              .lay_out = lay_out_pytorch_model};

}  // namespace dsckpt
