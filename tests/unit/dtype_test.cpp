#include <gtest/gtest.h>

#include <iterator>
#include <string>

#include "base/dtype_names.h"
#include "dsckpt/error.h"
#include "support/expect_error.h"

namespace dsckpt {
namespace {

// As torch 2.13 (itemsize, is_floating_point, torch.storage._dtype_to_storage_type_map) and
// safetensors 0.8 print them. safetensors' format also defines F8_E8M0, which its torch binding
// leaves out.
struct Fact {
  DType dtype;
  const char* torch;
  size_t size;
  bool floating;
  const char* storage;
  const char* safetensors;
};
constexpr Fact kFacts[] = {
    {DType::float64, "float64", 8, true, "DoubleStorage", "F64"},
    {DType::float32, "float32", 4, true, "FloatStorage", "F32"},
    {DType::float16, "float16", 2, true, "HalfStorage", "F16"},
    {DType::bfloat16, "bfloat16", 2, true, "BFloat16Storage", "BF16"},
    {DType::float8_e4m3fn, "float8_e4m3fn", 1, true, "", "F8_E4M3"},
    {DType::float8_e5m2, "float8_e5m2", 1, true, "", "F8_E5M2"},
    {DType::float8_e4m3fnuz, "float8_e4m3fnuz", 1, true, "", "F8_E4M3FNUZ"},
    {DType::float8_e5m2fnuz, "float8_e5m2fnuz", 1, true, "", "F8_E5M2FNUZ"},
    {DType::float8_e8m0fnu, "float8_e8m0fnu", 1, true, "", "F8_E8M0"},
    {DType::int64, "int64", 8, false, "LongStorage", "I64"},
    {DType::int32, "int32", 4, false, "IntStorage", "I32"},
    {DType::int16, "int16", 2, false, "ShortStorage", "I16"},
    {DType::int8, "int8", 1, false, "CharStorage", "I8"},
    {DType::uint64, "uint64", 8, false, "", "U64"},
    {DType::uint32, "uint32", 4, false, "", "U32"},
    {DType::uint16, "uint16", 2, false, "", "U16"},
    {DType::uint8, "uint8", 1, false, "ByteStorage", "U8"},
    {DType::boolean, "bool", 1, false, "BoolStorage", "BOOL"},
    {DType::complex32, "complex32", 4, false, "", ""},
    {DType::complex64, "complex64", 8, false, "ComplexFloatStorage", "C64"},
    {DType::complex128, "complex128", 16, false, "ComplexDoubleStorage", ""},
    {DType::float4_e2m1fn_x2, "float4_e2m1fn_x2", 1, true, "", "F4"},
    {DType::bits8, "bits8", 1, false, "", ""},
    {DType::bits16, "bits16", 2, false, "", ""},
    {DType::bits1x8, "bits1x8", 1, false, "", ""},
    {DType::bits2x4, "bits2x4", 1, false, "", ""},
    {DType::bits4x2, "bits4x2", 1, false, "", ""},
    {DType::qint8, "qint8", 1, false, "QInt8Storage", ""},
    {DType::quint8, "quint8", 1, false, "QUInt8Storage", ""},
    {DType::qint32, "qint32", 4, false, "QInt32Storage", ""},
    {DType::quint4x2, "quint4x2", 1, false, "QUInt4x2Storage", ""},
    {DType::quint2x4, "quint2x4", 1, false, "QUInt2x4Storage", ""},
};
static_assert(std::size(kFacts) == kDTypeCount);

TEST(DType, AgreesWithTorchAndSafetensors) {
  for (const Fact& fact : kFacts) {
    SCOPED_TRACE(fact.torch);
    EXPECT_EQ(torch_name(fact.dtype), fact.torch);
    EXPECT_EQ(size_of(fact.dtype), fact.size);
    EXPECT_EQ(is_floating_point(fact.dtype), fact.floating);
    EXPECT_EQ(storage_class(fact.dtype), fact.storage);
    EXPECT_EQ(safetensors_name(fact.dtype), fact.safetensors);
  }
}

TEST(DType, IsFoundByEachOfItsNames) {
  for (const Fact& fact : kFacts) {
    SCOPED_TRACE(fact.torch);
    EXPECT_EQ(dtype_from_torch_name(fact.torch), fact.dtype);
    if (*fact.storage != 0) {
      EXPECT_EQ(dtype_from_storage_class(fact.storage), fact.dtype);
    }
    if (*fact.safetensors != 0) {
      EXPECT_EQ(dtype_from_safetensors_name(fact.safetensors), fact.dtype);
    }
  }
}

TEST(DType, IsNotFoundByOtherNames) {
  EXPECT_EQ(dtype_from_torch_name("half"), std::nullopt);
  EXPECT_EQ(dtype_from_torch_name(""), std::nullopt);
  EXPECT_EQ(dtype_from_storage_class(""), std::nullopt);
  EXPECT_EQ(dtype_from_storage_class("UntypedStorage"), std::nullopt);
  EXPECT_EQ(dtype_from_safetensors_name(""), std::nullopt);
  EXPECT_EQ(dtype_from_safetensors_name("f32"), std::nullopt);
}

TEST(Numel, CountsElements) {
  EXPECT_EQ(numel({}), 1);
  EXPECT_EQ(numel({3, 4}), 12);
  EXPECT_EQ(numel({3, 0, 4}), 0);
  EXPECT_EQ(numel({int64_t{1} << 62}), int64_t{1} << 62);
}

TEST(Numel, RefusesNegativeAndOversizedShapes) {
  EXPECT_ERROR(numel({2, -1}), CorruptError, "negative dimension -1");
  EXPECT_ERROR(numel({0, -1}), CorruptError, "negative dimension");
  EXPECT_ERROR(numel({int64_t{1} << 32, int64_t{1} << 31}), CorruptError, "2^63");
  EXPECT_ERROR(numel({int64_t{1} << 32, int64_t{1} << 32}), CorruptError, "overflows");
  EXPECT_ERROR(numel({0, int64_t{1} << 62, int64_t{1} << 62}), CorruptError, "overflows");
}

TEST(ContiguousStrides, AreTorchs) {
  // torch.empty(shape).stride()
  EXPECT_EQ(contiguous_strides({}), Strides{});
  EXPECT_EQ(contiguous_strides({5}), (Strides{1}));
  EXPECT_EQ(contiguous_strides({2, 3, 4}), (Strides{12, 4, 1}));
  EXPECT_EQ(contiguous_strides({2, 0, 4}), (Strides{4, 4, 1}));
  EXPECT_EQ(contiguous_strides({2, 1, 4}), (Strides{4, 4, 1}));
}

}  // namespace
}  // namespace dsckpt
