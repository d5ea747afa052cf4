// Element types, named as torch names them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsckpt {

// Every element type torch can store in a checkpoint. `boolean` is torch.bool.
enum class DType : uint8_t {
  float64,
  float32,
  float16,
  bfloat16,
  float8_e4m3fn,
  float8_e5m2,
  float8_e4m3fnuz,
  float8_e5m2fnuz,
  float8_e8m0fnu,
  int64,
  int32,
  int16,
  int8,
  uint64,
  uint32,
  uint16,
  uint8,
  boolean,
  complex32,
  complex64,
  complex128,
};
inline constexpr size_t kDTypeCount = 21;

// Sizes of the dimensions, as torch counts them: all >= 0, empty for a 0-dim tensor.
using Shape = std::vector<int64_t>;
// Steps between neighbours along each dimension, in elements.
using Strides = std::vector<int64_t>;

// Bytes of one element.
size_t size_of(DType dtype);
// torch's name without "torch.": "float32", "bool", ...
std::string_view torch_name(DType dtype);
// The torch.<X>Storage class that pickles name: "FloatStorage"; "" for types that torch only stores
// untyped (fp8, uint16 to uint64).
std::string_view storage_class(DType dtype);
// safetensors' name: "F32", "BF16"; "" where safetensors has none.
std::string_view safetensors_name(DType dtype);
// torch.Tensor.is_floating_point: true for the float types, false for integers, bool and complex.
bool is_floating_point(DType dtype);

std::optional<DType> dtype_from_torch_name(std::string_view name);
std::optional<DType> dtype_from_storage_class(std::string_view name);
std::optional<DType> dtype_from_safetensors_name(std::string_view name);

// Number of elements. Throws CorruptError on a negative dimension or if the count does not fit.
int64_t numel(const Shape& shape);
// "[131, 11]"
std::string to_text(const Shape& shape);
// Row-major (contiguous) strides of `shape`, as torch gives them.
Strides contiguous_strides(const Shape& shape);

}  // namespace dsckpt
