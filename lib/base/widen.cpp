#include "base/widen.h"

#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "base/dtype_names.h"
#include "base/kernels.h"

namespace dsckpt {
namespace {

template <typename T, typename Wide>
void widen(const std::byte* source, Wide* target, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    target[i] = static_cast<Wide>(load_le<T>(source + i * sizeof(T)));
  }
}

}  // namespace

DType real_part(DType dtype) {
  switch (dtype) {
    case DType::complex32:
      return DType::float16;
    case DType::complex64:
      return DType::float32;
    case DType::complex128:
      return DType::float64;
    default:
      break;
  }
  if (!is_opaque(dtype)) return dtype;
  switch (size_of(dtype)) {
    case 1:
      return DType::uint8;
    case 2:
      return DType::uint16;
    default:
      return DType::uint32;
  }
}

bool float32_holds(DType dtype) {
  return dtype != DType::float64 && dtype != DType::int64 && dtype != DType::int32 &&
         dtype != DType::uint64 && dtype != DType::uint32;
}

void to_float64(DType dtype, const std::byte* source, double* target, size_t count) {
  switch (dtype) {
    case DType::float64:
      return widen<double>(source, target, count);
    case DType::float32:
      return widen<float>(source, target, count);
    case DType::int64:
      return widen<int64_t>(source, target, count);
    case DType::int32:
      return widen<int32_t>(source, target, count);
    case DType::uint64:
      return widen<uint64_t>(source, target, count);
    case DType::uint32:
      return widen<uint32_t>(source, target, count);
    default:
      break;
  }
  std::array<float, 512> chunk;
  std::byte* const floats = reinterpret_cast<std::byte*>(chunk.data());
  for (size_t i = 0; i < count; i += chunk.size()) {
    const size_t some = std::min(chunk.size(), count - i);
    convert(dtype, DType::float32, source + i * size_of(dtype), floats, some);
    widen<float>(floats, target + i, some);
  }
}

bool exceeds_float64(DType dtype) {
  return dtype == DType::int64 || dtype == DType::uint64;
}

void to_exact(DType dtype, const std::byte* source, Exact* target, size_t count) {
  return dtype == DType::int64 ? widen<int64_t>(source, target, count)
                               : widen<uint64_t>(source, target, count);
}

}  // namespace dsckpt
