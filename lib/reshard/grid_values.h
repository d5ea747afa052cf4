// Values of a model-states file that say the grid of the run: of a checkpoint on another grid
// (regrid.h), else copies.
#pragma once

#include "pickle/pickle.h"
#include "reshard/model_values.h"

namespace dsckpt {

// Each is made of what the checkpoint's file has under the key.

pickle::Value mp_world_size(ModelFile& file, const pickle::Value& saved);
// {"pp_degree", "tp_degree"}
pickle::Value parallel_dimensions(ModelFile& file, const pickle::Value& saved);
// The affine maps, the shares of sub-parameters and the padded vocabulary of
// universal_checkpoint_info.
pickle::Value grid_universal_info(ModelFile& file, const pickle::Value& saved);
// The arguments of Megatron-DeepSpeed and GPT-NeoX that count ranks and rows.
pickle::Value grid_arguments(ModelFile& file, const pickle::Value& saved);

}  // namespace dsckpt
