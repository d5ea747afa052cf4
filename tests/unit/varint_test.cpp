#include "base/varint.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "dsckpt/error.h"

namespace dsckpt {
namespace {

enum class Colour : uint8_t { red, green };

struct Spot {
  int64_t x = 0;
  double y = 0;

  bool operator==(const Spot&) const = default;
  static void fields(auto& codec, auto& self) { codec(self.x, self.y); }
};

struct All {
  bool is_there = false;
  uint32_t size = 0;
  int rank = 0;
  std::string name = {};
  std::filesystem::path path = {};
  std::optional<int> level = {};
  std::optional<std::array<std::byte, 2>> hash = {};
  std::vector<Spot> places = {};
  std::vector<std::vector<std::string>> words = {};
  Colour colour = Colour::red;
  std::vector<uint16_t> numbers = {};
  std::vector<Spot> rows = {};

  bool operator==(const All&) const = default;
  static void fields(auto& codec, auto& self) {
    codec(self.is_there, self.size, self.rank, self.name, self.path, self.level, self.hash,
          self.places, self.words);
    codec.one_of(self.colour, Colour::green);
    codec.rising(self.numbers);
    codec.rows(self.rows, &Spot::x);
  }
};

const All kSome{.is_there = true,
                .size = std::numeric_limits<uint32_t>::max(),
                .rank = -1,
                .name = std::string("a\0b", 3),
                .path = "out/file",
                .level = -7,
                .hash = std::array{std::byte{255}, std::byte{0}},
                .places = {{std::numeric_limits<int64_t>::min(), 0.5}, {3, -1e300}},
                .words = {{}, {"one", ""}},
                .colour = Colour::green,
                .numbers = {7, 9, 65535, 0},
                .rows = {{.x = 12}, {.x = -12}}};

TEST(Varint, ReadsWhatItWrites) {
  EXPECT_TRUE(decoded<All>(encoded(kSome)) == kSome);
  EXPECT_TRUE(decoded<All>(encoded(All())) == All());
}

TEST(Varint, RefusesBytesThatEndEarly) {
  const std::string bytes = encoded(kSome);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(decoded<All>(std::string_view(bytes).substr(0, size)), CorruptError) << size;
  }
}

TEST(Varint, RefusesUnknownEnumerators) {
  VarintReader reader("\2");
  Colour colour = Colour::red;
  EXPECT_THROW(reader.one_of(colour, Colour::green), CorruptError);
}

}  // namespace
}  // namespace dsckpt
