// The layers of a pipeline, which have files of their own. deepspeed/runtime/pipe/module.py
// save_state_dict, ckpt_layer_path.
//
// A file has the layer's own names ("fc1.weight"). In the whole model they begin with the number of
// the layer ("4.fc1.weight"), or, if the layer is tied, with its key
// ("tied_modules.embed.weight"): such a layer has one file, that of its first place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/layout.h"
#include "plan/tensor_source.h"

namespace dsckpt {

struct PipelineTensor {
  std::string name;                  // in the whole model
  std::vector<TensorSource> slices;  // by tensor-parallel rank
};

struct PipelineLayer {
  uint32_t index = 0;
  std::vector<PipelineTensor> tensors;  // in the file's order
};

// Opens the layers' files into draft.module_shards; none are no error. `names` are those of the
// parameters and buffers that the model-states files list, in their order: they say which layers
// are tied, and every one has to be in a layer. Throws InconsistentError that names what is
// missing.
std::vector<PipelineLayer> open_pipeline_layers(CheckpointDraft& draft,
                                                const std::vector<std::string>& names);

}  // namespace dsckpt
