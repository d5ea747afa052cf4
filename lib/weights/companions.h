// The files of a Hugging Face model folder that are needed beside weights to load them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "dsckpt/weights.h"
#include "io/input_file.h"
#include "plan/copy_plan.h"
#include "weights/model_config.h"

namespace dsckpt {

// Copies configurations, tokenizer and processor files, and the model's own Python code, from the
// place in `options`. The copied config.json, if there is one, gets the type `written` and the
// `changes`. Throws InconsistentError if it cannot hold them. If no config.json is copied, a note
// has its changes. Other notes name files that are left unchanged. Returns notes on files that
// transformers will miss. They are given if the output is for transformers: safetensors, or such
// files lie beside the checkpoint. Throws IoError, and UsageError if WeightsOptions::hf_config is
// not a folder or has no config.json; InconsistentError if that is not a JSON object.
std::vector<std::string> lay_out_companions(InputFiles& inputs, const Checkpoint& checkpoint,
                                            const WeightsOptions& options,
                                            std::optional<DType> written, PlanBuilder& plan,
                                            std::vector<std::string>& notes,
                                            const ModelChanges& changes = {});

// The text of the config.json of WeightsOptions::hf_config, or of the one beside the checkpoint.
// nullopt if there is none, or if it is too large for one. Throws as lay_out_companions().
std::optional<std::string> config_text(const Checkpoint& checkpoint, const WeightsOptions& options);

}  // namespace dsckpt
