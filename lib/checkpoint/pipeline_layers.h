// The layers of a pipeline, which have files of their own. deepspeed/runtime/pipe/module.py
// save_state_dict, ckpt_layer_path.
//
// A file has the layer's own names ("fc1.weight"). In the whole model they begin with the number of
// the layer ("4.fc1.weight"). If the layer is tied, they begin with its key
// ("tied_modules.embed.weight"). A tied layer has one file, that of its first place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/keyed_hash.h"
#include "checkpoint/layout.h"
#include "checkpoint/shard.h"
#include "plan/tensor_source.h"

namespace dsckpt {

struct PipelineTensor {
  std::string name;                  // in the whole model
  std::vector<TensorSource> slices;  // by tensor-parallel rank
  // The files have not the values, which are those of the masters; slices are zeros of their
  // shapes.
  bool stripped = false;
};

struct PipelineLayer {
  uint32_t index = 0;
  std::vector<PipelineTensor> tensors;  // in the file's order
};

// The number of a layer in the name of a parameter or buffer: 4 in "4.fc1.weight".
std::optional<uint32_t> layer_number(std::string_view name);
// The front of a name in the whole model, with its dot: "4.", "tied_modules.embed."; "" if it is of
// neither form.
std::string_view layer_front(std::string_view name);

// The prefixes of names in layers' files: "4.", "tied_modules.embed.".
class LayerFronts {
 public:
  // `names` as open_pipeline_layers has them; those of no layer are passed over.
  explicit LayerFronts(const std::vector<std::string>& names);

  // The prefix of the layer that has `keys` in its file. Call it layer by layer, by rising `index`:
  // if several tied modules fit, they come in the order of the layers.
  std::string front_for(uint32_t index, const std::vector<std::string>& keys);
  const KeyedSet<std::string>& names() const { return names_; }

 private:
  // The front of a tied module, and what is behind it in its names.
  struct Tied {
    std::string front;
    std::vector<std::string> rests;
  };

  std::optional<size_t> tied_for(const std::vector<std::string>& keys) const;

  KeyedSet<std::string> names_;
  std::vector<Tied> tied_;  // in the order of their names
  // By what is behind the front: those of `tied_` that no layer has yet.
  KeyedMap<std::string, std::set<size_t>> tied_with_;
};

// The names of the tensors in a layer's file, also of those without values.
std::vector<std::string> names_in_layer(const Shard& shard);

// Opens the layers' files into draft.module_shards; it is no error if there are none. The `names`
// are those of the parameters and buffers that the model-states files list, in their order. They
// say which layers are tied, and every one has to be in a layer. Throws InconsistentError that
// names what is missing.
std::vector<PipelineLayer> open_pipeline_layers(CheckpointDraft& draft,
                                                const std::vector<std::string>& names);

}  // namespace dsckpt
