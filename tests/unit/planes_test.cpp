#include "codec/planes.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <string>
#include <vector>

#include "support/packed_tools.h"

namespace dsckpt {
namespace {

using test::kLayouts;

// Around the lengths of vectors and of the blocks that are taken apart one after the other.
std::vector<size_t> counts() {
  std::vector<size_t> counts;
  for (size_t i = 0; i <= 70; ++i) counts.push_back(i);
  for (const size_t block : {2048u, 4096u, 6144u}) {
    for (const size_t i : {block - 33, block - 1, block, block + 1, block + 31}) {
      counts.push_back(i);
    }
  }
  return counts;
}

constexpr std::byte kGuard{0xA5};
constexpr size_t kGuards = 64;

// Room for `size` bytes that begins `shift` bytes behind any alignment, between guards.
class Guarded {
 public:
  Guarded(size_t size, size_t shift)
      : bytes_(size + shift + 2 * kGuards, kGuard), at_(kGuards + shift), size_(size) {}
  std::span<std::byte> room() { return std::span(bytes_).subspan(at_, size_); }
  std::string text() { return std::string(as_text(room())); }
  bool is_intact() const {
    for (size_t i = 0; i < bytes_.size(); ++i) {
      if ((i < at_ || i >= at_ + size_) && bytes_[i] != kGuard) return false;
    }
    return true;
  }

 private:
  std::vector<std::byte> bytes_;
  size_t at_;
  size_t size_;
};

constexpr std::array<std::array<size_t, 2>, 4> kShifts{{{0, 0}, {1, 0}, {0, 3}, {5, 7}}};

TEST(Planes, AreTheBytesOfTheElementsByDefinition) {
  for (const PlaneLayout layout : kLayouts) {
    for (const size_t count : counts()) {
      const std::string elements = test::random_bytes(count * layout.width, count + 1);
      const std::string expected = test::planes_by_definition(layout, elements);
      for (const auto& [from, to] : kShifts) {
        Guarded source(elements.size(), from);
        std::ranges::copy(as_byte_span(elements), source.room().begin());
        Guarded planes(elements.size(), to);
        split_planes(layout, source.room(), planes.room());
        ASSERT_TRUE(planes.text() == expected)
            << int{layout.width} << layout.rotated << " " << count << " " << from << " " << to;
        ASSERT_TRUE(planes.is_intact());
      }
    }
  }
}

TEST(Planes, BecomeTheElementsTheyAreOf) {
  for (const PlaneLayout layout : kLayouts) {
    for (const size_t count : counts()) {
      const std::string elements = test::random_bytes(count * layout.width, count + 2);
      const std::string all = test::planes_by_definition(layout, elements);
      for (const auto& [from, to] : kShifts) {
        // Each plane is in a place of its own.
        std::vector<Guarded> places;
        std::vector<const std::byte*> planes;
        for (size_t p = 0; p < layout.width; ++p) {
          places.emplace_back(count, from + p);
          std::ranges::copy(as_byte_span(all).subspan(p * count, count),
                            places.back().room().begin());
        }
        for (Guarded& place : places) planes.push_back(place.room().data());
        Guarded joined(elements.size(), to);
        join_planes(layout, planes, joined.room());
        ASSERT_TRUE(joined.text() == elements)
            << int{layout.width} << layout.rotated << " " << count << " " << from << " " << to;
        ASSERT_TRUE(joined.is_intact());
      }
    }
  }
}

// Values with each single bit set find every place of a rotation.
TEST(Planes, KeepEveryBit) {
  for (const PlaneLayout layout : kLayouts) {
    std::string elements;
    for (unsigned bit = 0; bit < 8U * layout.width; ++bit) {
      std::string element;
      append_le(element, uint64_t{1} << bit);
      elements += element.substr(0, layout.width);
    }
    std::vector<std::byte> planes(elements.size());
    split_planes(layout, as_byte_span(elements), planes);
    EXPECT_EQ(as_text(planes), test::planes_by_definition(layout, elements));
  }
}

template <typename T>
std::string bytes_of(std::initializer_list<T> values) {
  std::string out;
  for (const T value : values) append_le(out, value);
  return out;
}

TEST(Planes, OfFloatsHaveTheExponentsInOneByteWhateverTheSigns) {
  const std::string floats = bytes_of({1.0F, -1.0F, 1.5F, -1.9F});
  std::vector<std::byte> planes(floats.size());
  split_planes(plane_layout_of(DType::float32), as_byte_span(floats), planes);
  EXPECT_EQ(as_text(planes).substr(12), "\x7f\x7f\x7f\x7f");
  const std::string brains = bytes_of<uint16_t>({0x4049, 0xC049, 0x3F80});  // pi, -pi, 1
  planes.resize(brains.size());
  split_planes(plane_layout_of(DType::bfloat16), as_byte_span(brains), planes);
  EXPECT_EQ(as_text(planes).substr(3), "\x80\x80\x7f");
  EXPECT_EQ(as_text(planes).substr(0, 3), std::string("\x92\x93\x00", 3));
}

TEST(PlaneLayout, IsValidForTheWidthsThatThereAre) {
  for (int width = 0; width < 256; ++width) {
    for (const bool rotated : {false, true}) {
      const PlaneLayout layout{static_cast<uint8_t>(width), rotated};
      const bool expected =
          rotated ? width == 2 || width == 4 : width == 1 || width == 2 || width == 4 || width == 8;
      EXPECT_EQ(layout.is_valid(), expected) << width << rotated;
    }
  }
}

TEST(PlaneLayout, OfEveryTypeFitsItsElements) {
  for (size_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const PlaneLayout layout = plane_layout_of(dtype);
    EXPECT_TRUE(layout.is_valid()) << torch_name(dtype);
    const bool is_complex = torch_name(dtype).starts_with("complex");
    EXPECT_EQ(layout.width, size_of(dtype) / (is_complex ? 2 : 1)) << torch_name(dtype);
    // Eight bits of exponent below the sign.
    EXPECT_EQ(layout.rotated,
              dtype == DType::float32 || dtype == DType::bfloat16 || dtype == DType::complex64)
        << torch_name(dtype);
  }
}

}  // namespace
}  // namespace dsckpt
