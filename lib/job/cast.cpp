#include "job/cast.h"

#include "base/kernels.h"
#include "dsckpt/error.h"

namespace dsckpt {

TensorSource cast(const Param& param, std::optional<DType> target,
                  std::vector<std::string>& notes) {
  const DType stored = param.weight.dtype();
  const TensorSource weight = without_padding(param, param.weight);
  if (!is_floating_point(stored) || !target || *target == stored) return weight;
  if (is_opaque(stored) && *target == DType::float32) {
    notes.push_back("'" + param.name + "' stays " + std::string(torch_name(stored)));
    return weight;
  }
  if (!can_convert(stored, *target)) {
    throw UnsupportedError({.tensor = param.name}, "cannot convert " +
                                                       std::string(torch_name(stored)) + " to " +
                                                       std::string(torch_name(*target)))
        .with_hint("--dtype keep writes it as it is stored");
  }
  return weight.to(*target);
}

}  // namespace dsckpt
