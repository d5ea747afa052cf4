// Element types and shapes, named as torch names them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsckpt/export.h"

namespace dsckpt {

// Every element type torch can store in a checkpoint. `boolean` is torch.bool. Elements from
// float4_e2m1fn_x2 on are opaque: their bytes are copied and never converted. The quantised types
// are those of storages; tensors of them are not read.
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
  float4_e2m1fn_x2,
  bits8,
  bits16,
  bits1x8,
  bits2x4,
  bits4x2,
  qint8,
  quint8,
  qint32,
  quint4x2,
  quint2x4,
};
inline constexpr size_t kDTypeCount = 32;

// Sizes of the dimensions, as torch counts them: all >= 0, empty for a 0-dim tensor.
using Shape = std::vector<int64_t>;

// Bytes of one element.
DSCKPT_EXPORT size_t size_of(DType dtype);
// torch's name without "torch.": "float32", "bool", ...
DSCKPT_EXPORT std::string_view torch_name(DType dtype);
// torch.Tensor.is_floating_point: true for the float types (two float4 in a byte too),
// false for integers, bool, complex, bits and quantised types.
DSCKPT_EXPORT bool is_floating_point(DType dtype);
// Number of elements. Throws CorruptError on a negative dimension or if the count does not fit.
DSCKPT_EXPORT int64_t numel(const Shape& shape);
// "[131, 11]"
DSCKPT_EXPORT std::string to_text(const Shape& shape);

}  // namespace dsckpt
