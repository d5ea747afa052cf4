// The files of a pipeline's layers, and of experts, for other tensor-parallel ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/keyed_hash.h"
#include "checkpoint/regrid.h"
#include "plan/copy_plan.h"
#include "plan/tensor_source.h"
#include "reshard/copies.h"

namespace dsckpt {

// Adds FOLDER/layer_LL[-model_TT]-model_states.pt of all layers to `plan`, cut from those of the
// checkpoint. With `param_dtype` (ReshardTarget) the parameters have this type, rounded from the
// masters.
void lay_out_grid_layers(PlanBuilder& plan, const Regrid& grid, std::optional<DType> param_dtype,
                         const std::string& folder);

// The same for FOLDER/layer_L_expert_E_mp_rank_TT_model_states.pt of all experts among `files`, the
// checkpoint's.
void lay_out_grid_experts(PlanBuilder& plan, const Regrid& grid, const RankFreeFiles& files,
                          std::optional<DType> param_dtype, const std::string& folder);

// The tensors that both write for new tensor-parallel rank `tp_rank`, by their names in the model.
KeyedMap<std::string, TensorSource> grid_tensors(const Regrid& grid, const RankFreeFiles& files,
                                                 std::optional<DType> param_dtype,
                                                 uint32_t tp_rank);

}  // namespace dsckpt
