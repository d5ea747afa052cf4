#include "base/kernels.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "dsckpt/error.h"
#include "support/expect_error.h"

namespace dsckpt {
namespace {

using enum DType;

template <typename To, typename From>
std::vector<To> converted(DType from, DType to, const std::vector<From>& source) {
  std::vector<To> target(source.size());
  convert(from, to, reinterpret_cast<const std::byte*>(source.data()),
          reinterpret_cast<std::byte*>(target.data()), source.size());
  return target;
}

// One element at a time, which is too few for vector code.
template <typename To, typename From>
std::vector<To> converted_singly(DType from, DType to, const std::vector<From>& source) {
  std::vector<To> target(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    convert(from, to, reinterpret_cast<const std::byte*>(&source[i]),
            reinterpret_cast<std::byte*>(&target[i]), 1);
  }
  return target;
}

// The IEEE value nearest to `value`, ties to even, straight from the definition in double
// arithmetic. Not for NaN.
uint16_t nearest(double value, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int lowest = 1 - bias;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  const uint16_t infinity = static_cast<uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
  if (std::isinf(magnitude)) return sign | infinity;
  const int exponent = magnitude == 0 ? lowest : std::max(std::ilogb(magnitude), lowest);
  const double steps = std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent));
  const double code = std::ldexp(exponent - lowest, mantissa_bits) + steps;
  return static_cast<uint16_t>(sign | (code >= infinity ? infinity : static_cast<uint16_t>(code)));
}

// All exponents with mantissas near every place where rounding turns, and random ones.
std::vector<uint32_t> interesting_floats() {
  std::vector<uint32_t> bits;
  std::mt19937 engine(1);
  const auto random = [&] { return static_cast<uint32_t>(engine()); };
  for (uint32_t exponent = 0; exponent < 256; ++exponent) {
    std::vector<uint32_t> mantissas;
    for (uint32_t bit = 0; bit < 23; ++bit) {
      for (const uint32_t base : {0u, 1u << bit, (1u << 23) - (1u << bit), 3u << bit}) {
        for (const uint32_t nudge : {0u, 1u, ~0u}) mantissas.push_back(base + nudge);
      }
    }
    for (int i = 0; i < 500; ++i) mantissas.push_back(random());
    for (int i = 0; i < 200; ++i) {
      mantissas.push_back((random() << 13) | 0x1000u);  // halfway between two halves
      mantissas.push_back((random() << 16) | 0x8000u);  // halfway between two bfloat16
    }
    for (const uint32_t mantissa : mantissas) {
      const uint32_t positive = exponent << 23 | (mantissa & 0x7fffffu);
      bits.push_back(positive);
      bits.push_back(positive | 0x80000000u);
    }
  }
  return bits;
}

std::vector<uint16_t> all_patterns() {
  std::vector<uint16_t> bits(1 << 16);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  return bits;
}

bool is_nan16(uint16_t bits, int mantissa_bits) {
  return (bits & 0x7fff) > ((0x7fff >> mantissa_bits) << mantissa_bits);
}

TEST(Convert, GivesKnownHalves) {
  const std::vector<float> in{0.0f,       -0.0f,    1.0f,     -2.0f,    65504.0f,
                              65519.996f, 65520.0f, 0x1p-14f, 0x1p-24f, 0x1p-25f,
                              0x1.8p-25f, 1.0f / 3, -INFINITY};
  const std::vector<uint16_t> out{0x0000, 0x8000, 0x3c00, 0xc000, 0x7bff, 0x7bff, 0x7c00,
                                  0x0400, 0x0001, 0x0000, 0x0001, 0x3555, 0xfc00};
  EXPECT_EQ((converted<uint16_t>(float32, float16, in)), out);
}

TEST(Convert, GivesKnownBfloat16) {
  const std::vector<float> in{0.0f,          -0.0f,          1.0f,
                              -2.0f,         1.0f + 0x1p-8f, 1.0f + 0x1.8p-7f,
                              3.3895314e38f, 3.4028235e38f,  INFINITY};
  const std::vector<uint16_t> out{0x0000, 0x8000, 0x3f80, 0xc000, 0x3f80,
                                  0x3f82, 0x7f7f, 0x7f80, 0x7f80};
  EXPECT_EQ((converted<uint16_t>(float32, bfloat16, in)), out);
}

TEST(Convert, RoundsFloat32ToTheNearest16BitValueEverywhere) {
  const std::vector<uint32_t> bits = interesting_floats();
  const auto halves = converted<uint16_t>(float32, float16, bits);
  const auto bfloats = converted<uint16_t>(float32, bfloat16, bits);
  size_t wrong = 0;
  for (size_t i = 0; i < bits.size() && wrong < 10; ++i) {
    const float value = std::bit_cast<float>(bits[i]);
    const bool good = std::isnan(value) ? is_nan16(halves[i], 10) && is_nan16(bfloats[i], 7)
                                        : halves[i] == nearest(value, 5, 10) &&
                                              bfloats[i] == nearest(value, 8, 7);
    if (!good) {
      ++wrong;
      ADD_FAILURE() << std::hex << bits[i] << " became " << halves[i] << " and " << bfloats[i];
    }
  }
}

TEST(Convert, DoesTheSameOneByOneAsInBulk) {
  const std::vector<uint32_t> bits = interesting_floats();
  EXPECT_EQ((converted<uint16_t>(float32, float16, bits)),
            (converted_singly<uint16_t>(float32, float16, bits)));
  EXPECT_EQ((converted<uint16_t>(float32, bfloat16, bits)),
            (converted_singly<uint16_t>(float32, bfloat16, bits)));
  const std::vector<uint16_t> all = all_patterns();
  EXPECT_EQ((converted<uint32_t>(float16, float32, all)),
            (converted_singly<uint32_t>(float16, float32, all)));
  EXPECT_EQ((converted<uint32_t>(bfloat16, float32, all)),
            (converted_singly<uint32_t>(bfloat16, float32, all)));
}

TEST(Convert, WidensExactlyAndBack) {
  const std::vector<uint16_t> all = all_patterns();
  for (const DType type : {float16, bfloat16}) {
    const int mantissa_bits = type == float16 ? 10 : 7;
    const auto wide = converted<float>(type, float32, all);
    const auto back = converted<uint16_t>(type, type, all);
    const auto narrow = converted<uint16_t>(float32, type, wide);
    for (size_t i = 0; i < all.size(); ++i) {
      if (is_nan16(all[i], mantissa_bits)) {
        ASSERT_TRUE(std::isnan(wide[i])) << i;
        ASSERT_TRUE(is_nan16(narrow[i], mantissa_bits)) << i;
      } else {
        ASSERT_EQ(narrow[i], all[i]);
        ASSERT_EQ(back[i], all[i]);
        ASSERT_EQ(nearest(wide[i], 15 - mantissa_bits, mantissa_bits), all[i]);
      }
    }
  }
}

TEST(Convert, RoundsFloat64ThroughFloat32AsTorchDoes) {
  // Directly 1 + 2^-11 + 2^-40 is just above halfway between two halves; float32 drops the last
  // bit, and the tie then goes to even.
  const std::vector<double> in{1.0 + 0x1p-11 + 0x1p-40, 1e300, -1e-300, 0.1};
  EXPECT_EQ((converted<uint16_t>(float64, float16, in)),
            (std::vector<uint16_t>{0x3c00, 0x7c00, 0x8000, 0x2e66}));
  EXPECT_EQ((converted<float>(float64, float32, in)),
            (std::vector<float>{1.0f + 0x1p-11f, INFINITY, -0.0f, 0.1f}));
}

TEST(Convert, KnowsTheEndsOfEachFloat8) {
  const std::vector<uint8_t> codes{0x00, 0x01, 0x7e, 0x80, 0x7b, 0x38};
  EXPECT_EQ((converted<float>(float8_e4m3fn, float32, codes)),
            (std::vector<float>{0, 0x1p-9f, 448, -0.0f, 352, 1}));
  EXPECT_EQ((converted<float>(float8_e5m2, float32, std::vector<uint8_t>{0x01, 0x7b, 0x7c, 0xfc})),
            (std::vector<float>{0x1p-16f, 57344, INFINITY, -INFINITY}));
  EXPECT_EQ((converted<float>(float8_e4m3fnuz, float32, std::vector<uint8_t>{0x01, 0x7f, 0xff})),
            (std::vector<float>{0x1p-10f, 240, -240}));
  EXPECT_EQ((converted<float>(float8_e5m2fnuz, float32, std::vector<uint8_t>{0x01, 0x7f, 0xff})),
            (std::vector<float>{0x1p-17f, 57344, -57344}));
  EXPECT_EQ((converted<float>(float8_e8m0fnu, float32, std::vector<uint8_t>{0, 127, 254})),
            (std::vector<float>{0x1p-127f, 1, 0x1p127f}));
  for (const auto& [type, code] : std::vector<std::pair<DType, uint8_t>>{{float8_e4m3fn, 0x7f},
                                                                         {float8_e4m3fn, 0xff},
                                                                         {float8_e5m2, 0x7d},
                                                                         {float8_e4m3fnuz, 0x80},
                                                                         {float8_e5m2fnuz, 0x80},
                                                                         {float8_e8m0fnu, 0xff}}) {
    EXPECT_TRUE(std::isnan(converted<float>(type, float32, std::vector<uint8_t>{code})[0]))
        << torch_name(type);
  }
}

TEST(Convert, TakesUnalignedBuffersOfAnyLengthAndTouchesNothingElse) {
  std::vector<std::byte> source(8 * 2100 + 9);
  std::mt19937 random(2);
  for (std::byte& byte : source) byte = static_cast<std::byte>(random() & 0x3f);
  for (const DType from : {float64, float32, float16, bfloat16, float8_e5m2}) {
    for (const DType to : {float32, float16, bfloat16}) {
      for (const size_t count : {0u, 1u, 7u, 8u, 9u, 15u, 17u, 1023u, 1025u, 2049u}) {
        std::vector<std::byte> expected(count * size_of(to));
        for (size_t i = 0; i < count; ++i) {
          convert(from, to, source.data() + 1 + i * size_of(from),
                  expected.data() + i * size_of(to), 1);
        }
        std::vector<std::byte> target(expected.size() + 4, std::byte{0xee});
        convert(from, to, source.data() + 1, target.data() + 3, count);
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), target.begin() + 3))
            << torch_name(from) << " to " << torch_name(to) << ", " << count;
        EXPECT_EQ(target[2], std::byte{0xee});
        EXPECT_EQ(target.back(), std::byte{0xee});
      }
    }
  }
}

TEST(Convert, RefusesWhatItDoesNotKnow) {
  const std::byte in[16] = {};
  std::byte out[16];
  for (const auto& [from, to] : std::vector<std::pair<DType, DType>>{{int64, bfloat16},
                                                                     {boolean, bfloat16},
                                                                     {complex64, float32},
                                                                     {float32, float64},
                                                                     {float32, int8},
                                                                     {float32, float8_e5m2}}) {
    EXPECT_FALSE(can_convert(from, to));
    EXPECT_ERROR(convert(from, to, in, out, 1), UnsupportedError, torch_name(from));
  }
  EXPECT_TRUE(can_convert(float8_e8m0fnu, bfloat16));
}

// Between two neighbours of 16 bit, halfway and next to halfway, where a rounding to float32 before
// would decide otherwise.
TEST(RoundFloat64, IsOfOneRoundingToTheNearestEven) {
  for (const DType type : {bfloat16, float16}) {
    const auto wide = [&](uint16_t bits) {
      return static_cast<double>(converted<float>(type, float32, std::vector{bits}).front());
    };
    std::vector<double> values;
    std::vector<uint16_t> expected;
    const auto add = [&](double value, uint16_t bits) {
      values.insert(values.end(), {value, -value});
      expected.insert(expected.end(), {bits, static_cast<uint16_t>(bits | 0x8000)});
    };
    std::mt19937 random(11);
    for (int i = 0; i < 2000; ++i) {
      const auto low = static_cast<uint16_t>(random() % 0x7bff);
      const auto high = static_cast<uint16_t>(low + 1);
      const double middle = (wide(low) + wide(high)) / 2;
      add(wide(low), low);
      add(middle, low % 2 == 0 ? low : high);
      add(std::nextafter(middle, 0.0), low);
      add(std::nextafter(middle, 1e300), high);
    }
    add(std::numeric_limits<double>::infinity(), type == bfloat16 ? 0x7f80 : 0x7c00);
    add(1e300, type == bfloat16 ? 0x7f80 : 0x7c00);
    std::vector<uint16_t> rounded(values.size());
    round_float64(values.data(), type, reinterpret_cast<std::byte*>(rounded.data()), values.size());
    EXPECT_EQ(rounded, expected);
  }
}

TEST(Crc32, IsZipsOwn) {
  EXPECT_EQ(crc32(0, as_byte_span("123456789")), 0xcbf43926u);
  EXPECT_EQ(crc32(0, {}), 0u);
}

TEST(Crc32, ContinuesAndCombinesAsZlibComputesTheWhole) {
  std::string data(100'003, '\0');
  std::mt19937 random(3);
  for (char& c : data) c = static_cast<char>(random());
  const ByteSpan all = as_byte_span(data);
  const uint32_t whole = static_cast<uint32_t>(
      ::crc32(0, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(data.size())));
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{7}, size_t{50'000}, data.size()}) {
    const uint32_t head = crc32(0, all.first(cut));
    const uint32_t tail = crc32(0, all.subspan(cut));
    EXPECT_EQ(crc32(head, all.subspan(cut)), whole) << cut;
    EXPECT_EQ(crc32_combine(head, tail, data.size() - cut), whole) << cut;
  }
}

TEST(Crc32, IsUnchangedByNoBytes) {
  EXPECT_EQ(crc32(0x12345678u, {}), 0x12345678u);
  EXPECT_EQ(crc32_combine(0x12345678u, 0, 0), 0x12345678u);
}

}  // namespace
}  // namespace dsckpt
