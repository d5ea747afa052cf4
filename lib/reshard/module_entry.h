// An entry of a rank's model that is not in its model-states file: of a layer, or of an expert.
#pragma once

#include <string>

#include "plan/tensor_source.h"

namespace dsckpt {

struct ModuleEntry {
  std::string name;
  TensorSource value;
};

}  // namespace dsckpt
