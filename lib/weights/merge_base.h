// The model that an adapter is merged into.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/keyed_hash.h"
#include "base/patterns.h"
#include "checkpoint/checkpoint.h"
#include "dsckpt/dtype.h"
#include "dsckpt/error.h"
#include "dsckpt/weights.h"
#include "io/input_file.h"
#include "weights/adapter_config.h"
#include "weights/selection.h"
#include "weights/trained_parts.h"

namespace dsckpt {

// Names of input and output embeddings in the models of transformers.
bool is_embedding(const std::string& name);
bool is_output_embedding(const std::string& name);

// The base's tensors, in the base's order, as the module has them.
struct BaseTensors {
  struct Tensor {
    std::string name;
    Param param;           // the values too
    std::string alias_of;  // in the base
  };
  std::string display;  // for messages
  std::vector<Tensor> tensors = {};
  KeyedMap<std::string, size_t> index = {};
  std::vector<std::string> valueless = {};  // Checkpoint::valueless
  bool from_hub = false;                    // the files have the hub's names

  // Throws InconsistentError for a name that is there already.
  void add(Tensor tensor);
  // nullptr if there is none.
  const Tensor* find(const std::string& name) const;
  // Throws as refuse() if there is none, and UnsupportedError if the module is of a kind that
  // adapters are not merged into.
  const Tensor& at(const std::string& name) const;
  bool has_output_embedding() const;
  // Throws InconsistentError for a tensor that is not there. Throws UnsupportedError for output
  // embeddings that are tied to the input embeddings, under whose name alone they are stored.
  [[noreturn]] void refuse(const std::string& name) const;
};

// The untrained parameters among `chosen`, which are of `checkpoint`. Throws InconsistentError if
// there are none.
BaseTensors base_of_checkpoint(const Checkpoint& checkpoint,
                               const std::vector<ChosenTensor>& chosen);

// The adapter that a base is for, and the names that its output gets.
struct BaseUse {
  const TrainedParts& parts;
  const LoraSettings& settings;
  bool as_module = false;  // the output has the module's names
};
// The weights, or the checkpoint of weights, at `path`. Weights with the hub's names become the
// module's (hub_weights.h) if the adapter's places are then there, and are not as they stand. They
// do so with `as_module`, too.
BaseTensors base_of_weights(InputFiles& inputs, const std::filesystem::path& path,
                            const BaseUse& use, std::vector<std::string>& notes);

// The types of merged tensors.
class MergedTypes {
 public:
  explicit MergedTypes(const WeightsOptions& options)
      : dtype_(options.dtype), keep_fp32_(options.keep_fp32, "--keep-fp32") {}

  // The output's type for a floating tensor of the base.
  DType of(const BaseTensors::Tensor& tensor) const {
    return of(tensor.name, tensor.param.weight.dtype());
  }
  DType of(const std::string& name, DType stored) const {
    return keep_fp32_.find_in(name) ? DType::float32 : dtype_.value_or(stored);
  }

 private:
  const std::optional<DType> dtype_;
  const Patterns keep_fp32_;
};

}  // namespace dsckpt
