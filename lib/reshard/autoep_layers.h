// DeepSpeed's record of AutoEP's experts: which rank has which.
#pragma once

#include <cstdint>

#include "format/archive_copy.h"
#include "reshard/experts.h"

namespace dsckpt {

// ds_autoep_layers of `copy.from()` as rank `rank` writes it. engine.py _save_moe_checkpoint.
// Throws CorruptError if it has the wrong form. Throws UnsupportedError for experts that are not
// placed as DeepSpeed's engine places them: evenly, in order.
pickle::Value autoep_layers_value(ArchiveCopy& copy, const pickle::Value& layers,
                                  const ExpertMesh& mesh, uint32_t rank);

}  // namespace dsckpt
