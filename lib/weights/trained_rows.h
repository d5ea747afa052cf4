// The rows of embeddings that an adapter trained, merged into the base.
#pragma once

#include "weights/adapter_config.h"
#include "weights/merge_base.h"
#include "weights/merged_model.h"
#include "weights/trained_parts.h"

namespace dsckpt {

// Changes the weights of which rows were trained: peft's TrainableTokensLayer.merge. Throws as
// plan_merge.
void merge_rows(const BaseTensors& base, const TrainedParts& parts, const LoraSettings& settings,
                const MergedTypes& types, MergedModel& model);

}  // namespace dsckpt
