// How one rule of transformers' conversion mapping changes tensors: its operations
// (core_model_loading.ConversionOps) on lazy tensors.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dsckpt/dtype.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// Tensors by the pattern of a rule that their names fit, in its order.
using Collected = std::vector<std::pair<std::string, std::vector<TensorSource>>>;

struct ConversionContext {
  const std::vector<std::string>& from;  // the rule's patterns
  const std::vector<std::string>& to;
  const nlohmann::json& config;  // config.json
  // The module's shape for the first result, where it is known.
  const Shape* module_shape = nullptr;
  // Likewise of each of `to`, for "split".
  std::vector<const Shape*> module_shapes = {};
};

// Carries out `operation`, a list of its name and arguments as in rules.jsonl. Throws
// UnsupportedError for wrong numbers of tensors, for sizes that do not divide, and for a
// permutation of a tensor that lies in pieces.
Collected convert(const nlohmann::json& operation, Collected tensors,
                  const ConversionContext& context);

}  // namespace dsckpt
