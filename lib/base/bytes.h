// Bytes: checked arithmetic and a bounded little-endian cursor, for all parsers.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/text.h"
#include "dsckpt/error.h"

namespace dsckpt {

static_assert(std::endian::native == std::endian::little,
              "all formats read here are little-endian");

using ByteSpan = std::span<const std::byte>;

inline ByteSpan as_byte_span(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view as_text(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A double holds every whole number up to this one.
inline constexpr double kMostWhole = 9e15;

// Sum and product that throw CorruptError instead of overflowing.
inline uint64_t checked_add(uint64_t a, uint64_t b) {
  uint64_t out = 0;
  if (__builtin_add_overflow(a, b, &out)) throw CorruptError({}, "size overflows 64 bits");
  return out;
}
inline uint64_t checked_mul(uint64_t a, uint64_t b) {
  uint64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) throw CorruptError({}, "size overflows 64 bits");
  return out;
}

// Adds `term` (not negative) to `sum`, up to the largest number of the type. For counts that are
// only shown: views can have far more elements than a disk has bytes.
template <typename Number>
void add_saturating(Number& sum, Number term) {
  if (__builtin_add_overflow(sum, term, &sum)) sum = std::numeric_limits<Number>::max();
}

// `value` rounded up to a multiple of `unit` (not 0). Throws CorruptError on overflow.
inline uint64_t round_up(uint64_t value, uint64_t unit) {
  return checked_add(value, unit - 1) / unit * unit;
}

// ceil(value / unit), unit not 0.
inline uint64_t div_ceil(uint64_t value, uint64_t unit) {
  return value / unit + (value % unit != 0);
}

template <typename T>
T load_le(const std::byte* at) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <typename T>
void store_le(std::byte* at, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memcpy(at, &value, sizeof value);
}

// Appends the little-endian bytes of `value`.
template <typename T>
void append_le(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

// A cursor over borrowed bytes that cannot leave them. A read past the end throws a CorruptError
// with the offset. Messages count offsets from `base`, the offset of the first byte in its file.
class ByteReader {
 public:
  explicit ByteReader(ByteSpan bytes, uint64_t base = 0) : bytes_(bytes), base_(base) {}

  uint64_t offset() const { return base_ + position_; }
  size_t position() const { return position_; }
  size_t remaining() const { return bytes_.size() - position_; }
  bool at_end() const { return remaining() == 0; }

  ByteSpan take(uint64_t count) {
    if (count > remaining()) fail(count);
    ByteSpan out = bytes_.subspan(position_, static_cast<size_t>(count));
    position_ += static_cast<size_t>(count);
    return out;
  }

  template <typename T>
  T read() {
    return load_le<T>(take(sizeof(T)).data());
  }

  std::string_view text(uint64_t count) { return as_text(take(count)); }

  // The text up to the next '\n', which is consumed and not returned.
  std::string_view line() {
    const auto rest = as_text(bytes_.subspan(position_));
    const size_t end = rest.find('\n');
    if (end == std::string_view::npos) {
      throw CorruptError({.offset = offset()}, "unterminated line");
    }
    position_ += end + 1;
    return rest.substr(0, end);
  }

 private:
  // A function of its own, so that take() is inlined.
  [[noreturn, gnu::cold, gnu::noinline]] void fail(uint64_t count) const {
    throw CorruptError({.offset = offset()}, counted(count, "byte") + " expected, " +
                                                 std::to_string(remaining()) + " left");
  }

  ByteSpan bytes_;
  uint64_t base_;
  size_t position_ = 0;
};

}  // namespace dsckpt
