#include "base/dtype_names.h"

#include <array>
#include <limits>
#include <string>

#include "base/bytes.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

struct Row {
  std::string_view torch;
  std::string_view storage;
  std::string_view safetensors;
  uint8_t size;
  bool floating;
};

// In the order of the enumerators.
constexpr std::array<Row, kDTypeCount> kRows{{
    {"float64", "DoubleStorage", "F64", 8, true},
    {"float32", "FloatStorage", "F32", 4, true},
    {"float16", "HalfStorage", "F16", 2, true},
    {"bfloat16", "BFloat16Storage", "BF16", 2, true},
    {"float8_e4m3fn", "", "F8_E4M3", 1, true},
    {"float8_e5m2", "", "F8_E5M2", 1, true},
    {"float8_e4m3fnuz", "", "F8_E4M3FNUZ", 1, true},
    {"float8_e5m2fnuz", "", "F8_E5M2FNUZ", 1, true},
    {"float8_e8m0fnu", "", "F8_E8M0", 1, true},
    {"int64", "LongStorage", "I64", 8, false},
    {"int32", "IntStorage", "I32", 4, false},
    {"int16", "ShortStorage", "I16", 2, false},
    {"int8", "CharStorage", "I8", 1, false},
    {"uint64", "", "U64", 8, false},
    {"uint32", "", "U32", 4, false},
    {"uint16", "", "U16", 2, false},
    {"uint8", "ByteStorage", "U8", 1, false},
    {"bool", "BoolStorage", "BOOL", 1, false},
    {"complex32", "", "", 4, false},
    {"complex64", "ComplexFloatStorage", "C64", 8, false},
    {"complex128", "ComplexDoubleStorage", "", 16, false},
    {"float4_e2m1fn_x2", "", "F4", 1, true},
    {"bits8", "", "", 1, false},
    {"bits16", "", "", 2, false},
    {"bits1x8", "", "", 1, false},
    {"bits2x4", "", "", 1, false},
    {"bits4x2", "", "", 1, false},
    {"qint8", "QInt8Storage", "", 1, false},
    {"quint8", "QUInt8Storage", "", 1, false},
    {"qint32", "QInt32Storage", "", 4, false},
    {"quint4x2", "QUInt4x2Storage", "", 1, false},
    {"quint2x4", "QUInt2x4Storage", "", 1, false},
}};

const Row& row(DType dtype) {
  return kRows[static_cast<size_t>(dtype)];
}

std::optional<DType> find(std::string_view Row::*column, std::string_view name) {
  if (name.empty()) return std::nullopt;
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].*column == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace

size_t size_of(DType dtype) {
  return row(dtype).size;
}
std::string_view torch_name(DType dtype) {
  return row(dtype).torch;
}
std::string_view storage_class(DType dtype) {
  return row(dtype).storage;
}
std::string_view safetensors_name(DType dtype) {
  return row(dtype).safetensors;
}
bool is_floating_point(DType dtype) {
  return row(dtype).floating;
}

bool is_quantised(DType dtype) {
  return dtype >= DType::qint8;
}
bool is_opaque(DType dtype) {
  return dtype >= DType::float4_e2m1fn_x2;
}

std::optional<DType> dtype_from_torch_name(std::string_view name) {
  return find(&Row::torch, name);
}
std::optional<DType> dtype_from_storage_class(std::string_view name) {
  return find(&Row::storage, name);
}
std::optional<DType> dtype_from_safetensors_name(std::string_view name) {
  return find(&Row::safetensors, name);
}

int64_t numel(const Shape& shape) {
  uint64_t count = 1;
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0)
      throw CorruptError({}, "negative dimension " + std::to_string(size) + " in a shape");
    if (size == 0) empty = true;
    count = checked_mul(count, size == 0 ? 1 : static_cast<uint64_t>(size));
  }
  if (count > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    throw CorruptError({}, "a shape has more than 2^63 elements");
  }
  return empty ? 0 : static_cast<int64_t>(count);
}

std::string to_text(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

Strides contiguous_strides(const Shape& shape) {
  Strides strides(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    step *= shape[i] > 1 ? shape[i] : 1;
  }
  return strides;
}

}  // namespace dsckpt
