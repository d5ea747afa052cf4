// The files of a Hugging Face model folder that weights need beside them to be loaded.
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

// Copies configurations, tokenizer and processor files, and the model's own Python code, from where
// `options` say. Their config.json says `written` then, if there is one, and `changes`.
// InconsistentError if it cannot. A note says what it would have to say where none comes along.
// Notes are added on files that are left as they are. Returns notes on what transformers will miss,
// if what is written is for them: safetensors, or such files lie beside the checkpoint. Throws
// UsageError if WeightsOptions::hf_config is no folder or has no config.json, IoError.
std::vector<std::string> lay_out_companions(InputFiles& inputs, const Checkpoint& checkpoint,
                                            const WeightsOptions& options,
                                            std::optional<DType> written, PlanBuilder& plan,
                                            std::vector<std::string>& notes,
                                            const ModelChanges& changes = {});

// The text of the config.json of WeightsOptions::hf_config, or of the one beside the checkpoint;
// nullopt if there is none, or if it is too large to be one. Throws likewise.
std::optional<std::string> config_text(const Checkpoint& checkpoint, const WeightsOptions& options);

}  // namespace dsckpt
