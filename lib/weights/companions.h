// The files of a Hugging Face model folder that weights need beside them to be loaded.
#pragma once

#include <filesystem>

#include "io/input_file.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// Copies configurations, tokenizer and processor files, and the model's own Python code from
// `folder`. Throws UsageError if it is no folder or has no config.json, IoError.
void lay_out_companions(InputFiles& inputs, const std::filesystem::path& folder, PlanBuilder& plan);

}  // namespace dsckpt
