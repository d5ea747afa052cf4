// The layers of an adapter's LoRA, merged into the base.
#pragma once

#include "weights/adapter_config.h"
#include "weights/merge_base.h"
#include "weights/merged_model.h"
#include "weights/trained_parts.h"

namespace dsckpt {

// Changes the tensors that LoRA is on: peft's LoraLayer.merge and ParamWrapper. Throws as
// plan_merge.
void merge_layers(const BaseTensors& base, const TrainedParts& parts, const LoraSettings& settings,
                  MergedModel& model);

}  // namespace dsckpt
