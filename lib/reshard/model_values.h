// Values of a model-states file that are of its parameters, or of the grid of the run.
#pragma once

#include <span>
#include <string>

#include "base/keyed_hash.h"
#include "format/torch_archive.h"
#include "pickle/pickle.h"
#include "reshard/rank_file.h"

namespace dsckpt {

// A model-states file in the making.
struct ModelFile : RankFile {
  // Further entries of `module`.
  std::span<const ModuleEntry> more = {};
  bool has_optimizer = true;  // stage 0
  // The storages of `module`'s parameters by name, which frozen_param_fragments share.
  KeyedMap<std::string, TorchArchiveWriter::StorageId> storages = {};
};

// Each is made of what the checkpoint's file has under the key, None where it has nothing.

// Where the checkpoint was renamed; else a copy.
pickle::Value names_of_buffers(ModelFile& file, const pickle::Value& saved);
// Between stage 3 and the others parameters become placeholders or the masters, rounded.
// UnsupportedError for a parameter without values.
pickle::Value module_value(ModelFile& file, const pickle::Value& saved);
pickle::Value param_shapes(ModelFile& file, const pickle::Value& saved);
pickle::Value frozen_param_shapes(ModelFile& file, const pickle::Value& saved);
pickle::Value frozen_param_fragments(ModelFile& file, const pickle::Value& saved);
pickle::Value shared_params(ModelFile& file, const pickle::Value& saved);

// Those of another grid (regrid.h), else copies.
pickle::Value mp_world_size(ModelFile& file, const pickle::Value& saved);
// {"pp_degree", "tp_degree"}
pickle::Value parallel_dimensions(ModelFile& file, const pickle::Value& saved);
// The affine maps, the shares of sub-parameters and the padded vocabulary of
// universal_checkpoint_info.
pickle::Value grid_universal_info(ModelFile& file, const pickle::Value& saved);
// The arguments of Megatron-DeepSpeed and GPT-NeoX that count ranks and rows.
pickle::Value grid_arguments(ModelFile& file, const pickle::Value& saved);

// ds_autoep_layers, the record of AutoEP's experts, as the rank writes it. engine.py
// _save_moe_checkpoint. Throws CorruptError if it has the wrong form. Throws UnsupportedError for
// experts that are not placed as DeepSpeed's engine places them: evenly, in order.
pickle::Value autoep_layers(ModelFile& file, const pickle::Value& layers);

}  // namespace dsckpt
