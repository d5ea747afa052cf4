// Names of element types in files, beside torch's own names (dsckpt/dtype.h).
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "dsckpt/dtype.h"

namespace dsckpt {

// The distance between neighbours along each dimension, in elements.
using Strides = std::vector<int64_t>;

// The torch.<X>Storage class in pickles: "FloatStorage"; "" for types that torch only stores
// untyped (fp8, uint16 to uint64).
std::string_view storage_class(DType dtype);
// safetensors' name: "F32", "BF16"; "" where safetensors has none.
std::string_view safetensors_name(DType dtype);

std::optional<DType> dtype_from_torch_name(std::string_view name);
std::optional<DType> dtype_from_storage_class(std::string_view name);
std::optional<DType> dtype_from_safetensors_name(std::string_view name);

// Storage types beside which torch keeps a scale (torch._utils._rebuild_qtensor).
bool is_quantised(DType dtype);
// True for elements whose bytes stand for no number, or for several: bits, quantised types, and
// float4_e2m1fn_x2.
bool is_opaque(DType dtype);

// Row-major (contiguous) strides of `shape`, as torch gives them.
Strides contiguous_strides(const Shape& shape);

}  // namespace dsckpt
