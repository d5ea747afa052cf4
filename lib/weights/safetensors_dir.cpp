#include <map>

#include "format/safetensors.h"
#include "weights/weights_format.h"

namespace dsckpt {
namespace {

void lay_out_model_safetensors(PlanBuilder& plan, std::string path,
                               std::span<const OutputTensor> tensors,
                               const std::map<std::string, std::string>& said) {
  std::map<std::string, std::string> metadata = said;
  metadata["format"] = "pt";
  std::vector<NamedSource> sources;
  for (const OutputTensor& tensor : tensors) {
    if (tensor.alias_of.empty()) {
      sources.push_back({tensor.name, tensor.source});
    } else {
      metadata.emplace(tensor.name, tensor.alias_of);
    }
  }
  lay_out_safetensors(plan, std::move(path), std::move(sources), metadata);
}

}  // namespace

const WeightsFormat kSafetensors{.name = "safetensors",
                                 .stem = "model",
                                 .extension = ".safetensors",
                                 .index_name = "model.safetensors.index.json",
                                 .shares_storage = false,
                                 .lay_out = lay_out_model_safetensors};

}  // namespace dsckpt
