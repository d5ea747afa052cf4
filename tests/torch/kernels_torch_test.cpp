// convert() against at::Tensor::to.
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/kernels.h"

namespace dsckpt {
namespace {

using enum DType;

at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case float64:
      return at::kDouble;
    case float32:
      return at::kFloat;
    case float16:
      return at::kHalf;
    case bfloat16:
      return at::kBFloat16;
    case float8_e4m3fn:
      return at::kFloat8_e4m3fn;
    case float8_e5m2:
      return at::kFloat8_e5m2;
    case float8_e4m3fnuz:
      return at::kFloat8_e4m3fnuz;
    case float8_e5m2fnuz:
      return at::kFloat8_e5m2fnuz;
    case float8_e8m0fnu:
      return at::kFloat8_e8m0fnu;
    case int64:
      return at::kLong;
    case int32:
      return at::kInt;
    case int16:
      return at::kShort;
    case int8:
      return at::kChar;
    case uint64:
      return at::kUInt64;
    case uint32:
      return at::kUInt32;
    case uint16:
      return at::kUInt16;
    case uint8:
      return at::kByte;
    case boolean:
      return at::kBool;
    default:
      throw std::logic_error("a type that is not converted");
  }
}

template <typename Bits>
bool is_nan(Bits bits, DType dtype) {
  if (dtype == float32) return (bits & 0x7fffffffu) > 0x7f800000u;
  return (bits & 0x7fffu) > (dtype == float16 ? 0x7c00u : 0x7f80u);
}

// Bit for bit, but that any NaN is as good as another.
template <typename To, typename From>
void expect_as_torch(DType from, DType to, const std::vector<From>& source) {
  SCOPED_TRACE(std::string(torch_name(from)) + " to " + std::string(torch_name(to)));
  ASSERT_EQ(sizeof(From), size_of(from));
  ASSERT_EQ(sizeof(To), size_of(to));
  std::vector<To> ours(source.size());
  convert(from, to, reinterpret_cast<const std::byte*>(source.data()),
          reinterpret_cast<std::byte*>(ours.data()), source.size());
  const at::Tensor theirs =
      at::from_blob(const_cast<From*>(source.data()), {static_cast<int64_t>(source.size())},
                    at::TensorOptions().dtype(scalar_type(from)))
          .to(scalar_type(to));
  const To* expected = static_cast<const To*>(theirs.const_data_ptr());
  int wrong = 0;
  for (size_t i = 0; i < source.size() && wrong < 10; ++i) {
    if (ours[i] == expected[i] || (is_nan(ours[i], to) && is_nan(expected[i], to))) continue;
    ++wrong;
    ADD_FAILURE() << std::hex << +source[i] << " becomes " << ours[i] << ", torch says "
                  << expected[i];
  }
}

template <typename From>
void expect_all_as_torch(DType from, const std::vector<From>& source) {
  expect_as_torch<uint32_t>(from, float32, source);
  expect_as_torch<uint16_t>(from, float16, source);
  expect_as_torch<uint16_t>(from, bfloat16, source);
}

TEST(ConvertAsTorch, AllHalvesAndBfloats) {
  std::vector<uint16_t> all(1 << 16);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  expect_all_as_torch(float16, all);
  expect_all_as_torch(bfloat16, all);
}

TEST(ConvertAsTorch, AllFloat8) {
  std::vector<uint8_t> all(1 << 8);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint8_t>(i);
  for (const DType from :
       {float8_e4m3fn, float8_e5m2, float8_e4m3fnuz, float8_e5m2fnuz, float8_e8m0fnu}) {
    expect_all_as_torch(from, all);
  }
}

TEST(ConvertAsTorch, IntegersAndBools) {
  std::vector<uint8_t> bytes(1 << 8);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i);
  expect_as_torch<uint32_t>(uint8, float32, bytes);
  expect_as_torch<uint32_t>(int8, float32, bytes);
  expect_as_torch<uint32_t>(boolean, float32, std::vector<uint8_t>{0, 1});
  std::vector<uint16_t> words(1 << 16);
  for (size_t i = 0; i < words.size(); ++i) words[i] = static_cast<uint16_t>(i);
  expect_as_torch<uint32_t>(int16, float32, words);
  expect_as_torch<uint32_t>(uint16, float32, words);
  // Around the places where float32 starts to round, and ties.
  std::vector<uint32_t> ints;
  std::vector<uint64_t> longs;
  for (unsigned bit = 0; bit < 64; ++bit) {
    for (uint64_t delta = 0; delta < 6; ++delta) {
      for (const uint64_t value : {(uint64_t{1} << bit) + delta, (uint64_t{1} << bit) - delta,
                                   ~(uint64_t{1} << bit) + delta}) {
        longs.push_back(value);
        ints.push_back(static_cast<uint32_t>(value));
      }
    }
    if (bit >= 24) longs.push_back((uint64_t{1} << bit) + (uint64_t{3} << (bit - 24)));
  }
  expect_as_torch<uint32_t>(int32, float32, ints);
  expect_as_torch<uint32_t>(uint32, float32, ints);
  expect_as_torch<uint32_t>(int64, float32, longs);
  expect_as_torch<uint32_t>(uint64, float32, longs);
}

// Every exponent with random mantissas and with all that lie halfway between two 16-bit values, and
// their neighbours.
TEST(ConvertAsTorch, Float32OfEveryExponent) {
  std::mt19937 engine(1);
  for (uint32_t exponent = 0; exponent < 512; ++exponent) {  // with the sign
    std::vector<uint32_t> bits;
    for (int i = 0; i < 2000; ++i) bits.push_back(static_cast<uint32_t>(engine()) & 0x7fffffu);
    for (uint32_t kept = 0; kept < 1u << 10; ++kept) bits.push_back(kept << 13 | 0x1000u);
    for (uint32_t kept = 0; kept < 1u << 7; ++kept) bits.push_back(kept << 16 | 0x8000u);
    // Halfway cases of subnormal halves: fewer bits are kept.
    for (uint32_t shift = 13; shift < 23; ++shift) {
      for (uint32_t kept = 0; kept < 1u << (22 - shift); ++kept) {
        bits.push_back(kept << (shift + 1) | 1u << shift);
      }
    }
    const size_t ties = bits.size();
    for (size_t i = 2000; i < ties; ++i) {
      bits.push_back(bits[i] - 1);
      bits.push_back((bits[i] + 1) & 0x7fffffu);
    }
    bits.push_back(0);
    bits.push_back(0x7fffffu);
    for (uint32_t& value : bits) value |= exponent << 23;
    expect_as_torch<uint16_t>(float32, float16, bits);
    expect_as_torch<uint16_t>(float32, bfloat16, bits);
    if (HasFailure()) break;
  }
}

TEST(ConvertAsTorch, Float64) {
  std::mt19937_64 random(2);
  std::vector<uint64_t> bits;
  for (uint64_t exponent = 0; exponent < 4096; ++exponent) {  // with the sign
    for (const uint64_t mantissa :
         {uint64_t{0}, uint64_t{1}, (uint64_t{1} << 52) - 1, uint64_t{1} << 28,
          (uint64_t{1} << 28) + 1, (uint64_t{1} << 28) - 1, uint64_t{3} << 28, uint64_t{1} << 41,
          (uint64_t{1} << 41) + 1, (uint64_t{1} << 41) - 1, uint64_t{1} << 44,
          (uint64_t{1} << 44) + 1}) {
      bits.push_back(exponent << 52 | mantissa);
    }
    for (int i = 0; i < 30; ++i) bits.push_back(exponent << 52 | random() >> 12);
  }
  // Near one, where all three types have values: every length of mantissa.
  for (int i = 0; i < 200'000; ++i) {
    const uint64_t exponent = 1023 - 30 + random() % 50;
    const uint64_t cut = random() % 52;
    bits.push_back((random() & uint64_t{1} << 63) | exponent << 52 | random() >> 12 >> cut << cut);
  }
  expect_all_as_torch(float64, bits);
}

}  // namespace
}  // namespace dsckpt
