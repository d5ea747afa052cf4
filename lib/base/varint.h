// Numbers and texts in few bytes, for messages between processes of this program.
//
// Numbers are LEB128: seven bits a byte, low bits first. Differences may be negative, so they are
// zigzag-coded first. A text is its length and its bytes.
//
// One list of a struct's members serves both directions. It is a static member of the struct:
//
//   static void fields(auto& codec, auto& self) { codec(self.name, self.sizes, self.place); }
//
// A codec is a VarintWriter, and `self` constant, or a VarintReader. Members may be numbers, texts,
// paths, such structs, and optionals, vectors and arrays of these. The codec's other functions with
// the same name in both classes may be called there, too.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace dsckpt {

class VarintWriter {
 public:
  void number(uint64_t value) {
    if (value < 0x80) return bytes_.push_back(static_cast<char>(value));
    char bytes[10];
    size_t size = 0;
    for (; value >= 0x80; value >>= 7) bytes[size++] = static_cast<char>(value | 0x80);
    bytes[size++] = static_cast<char>(value);
    bytes_.append(bytes, size);
  }
  void difference(uint64_t from, uint64_t to) {
    const auto by = static_cast<int64_t>(to - from);
    number((static_cast<uint64_t>(by) << 1) ^ static_cast<uint64_t>(by >> 63));
  }
  void real(double value) { append_le(bytes_, value); }
  void text(std::string_view text) {
    number(text.size());
    bytes_ += text;
  }

  template <typename... Values>
  void operator()(const Values&... values) {
    (put(values), ...);
  }
  // An enumerator, up to `last`.
  template <typename Enum>
  void one_of(Enum value, Enum) {
    number(static_cast<uint64_t>(value));
  }
  // The given members of each row, such as &Row::size.
  template <typename Rows, typename... Members>
  void rows(const Rows& rows, Members... members) {
    number(rows.size());
    for (const auto& row : rows) ((*this)(row.*members), ...);
  }
  // Numbers that mostly rise, in few bytes.
  template <typename Number>
  void rising(const std::vector<Number>& numbers) {
    number(numbers.size());
    uint64_t before = 0;
    for (const Number each : numbers) difference(std::exchange(before, each), each);
  }

  std::string take() { return std::move(bytes_); }

 private:
  template <typename Value>
  void put(const Value& value) {
    if constexpr (std::same_as<Value, double>) {
      real(value);
    } else if constexpr (std::signed_integral<Value>) {
      difference(0, static_cast<uint64_t>(value));
    } else if constexpr (std::integral<Value> || std::same_as<Value, std::byte>) {
      number(static_cast<uint64_t>(value));
    } else if constexpr (std::same_as<Value, std::filesystem::path>) {
      text(value.native());
    } else if constexpr (std::convertible_to<const Value&, std::string_view>) {
      text(value);
    } else if constexpr (requires { value.has_value(); }) {
      put(value.has_value());
      if (value) put(*value);
    } else if constexpr (requires { value.begin(); }) {
      if constexpr (requires { value.capacity(); }) number(value.size());
      for (const auto& each : value) put(each);
    } else {
      Value::fields(*this, value);
    }
  }

  std::string bytes_;
};

// Throws CorruptError if the bytes end early or a number has no end.
class VarintReader {
 public:
  explicit VarintReader(std::string_view bytes) : reader_(as_byte_span(bytes)) {}

  uint64_t number() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = reader_.read<uint8_t>();
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    throw CorruptError({.offset = reader_.offset()}, "a number without an end");
  }
  // A number below `end`, such as an index.
  uint64_t below(uint64_t end) {
    const uint64_t value = number();
    if (value >= end) throw CorruptError({.offset = reader_.offset()}, "a number of nothing");
    return value;
  }
  // An enumerator, up to `last`.
  template <typename Enum>
  Enum choice(Enum last) {
    return static_cast<Enum>(below(static_cast<uint64_t>(last) + 1));
  }
  // The number of things that take at least one byte each.
  size_t count() {
    const uint64_t count = number();
    if (count > reader_.remaining()) {
      throw CorruptError({.offset = reader_.offset()}, "more than there is");
    }
    return static_cast<size_t>(count);
  }
  uint64_t difference(uint64_t from) {
    const uint64_t coded = number();
    return from + ((coded >> 1) ^ (~(coded & 1) + 1));
  }
  double real() { return reader_.read<double>(); }
  std::string text() { return std::string(reader_.text(number())); }
  bool at_end() const { return reader_.at_end(); }

  template <typename... Values>
  void operator()(Values&... values) {
    (take(values), ...);
  }
  template <typename Enum>
  void one_of(Enum& value, Enum last) {
    value = choice(last);
  }
  template <typename Row, typename... Members>
  void rows(std::vector<Row>& rows, Members... members) {
    rows.resize(count());
    for (Row& row : rows) ((*this)(row.*members), ...);
  }
  template <typename Number>
  void rising(std::vector<Number>& numbers) {
    numbers.resize(count());
    uint64_t before = 0;
    for (Number& each : numbers) {
      before = difference(before);
      each = static_cast<Number>(before);
    }
  }

 private:
  template <typename Value>
  void take(Value& value) {
    if constexpr (std::same_as<Value, double>) {
      value = real();
    } else if constexpr (std::same_as<Value, bool>) {
      value = number() != 0;
    } else if constexpr (std::signed_integral<Value>) {
      value = static_cast<Value>(difference(0));
    } else if constexpr (std::integral<Value>) {
      value = static_cast<Value>(number());
    } else if constexpr (std::same_as<Value, std::byte>) {
      value = static_cast<std::byte>(below(256));
    } else if constexpr (std::convertible_to<const Value&, std::string_view> ||
                         std::same_as<Value, std::filesystem::path>) {
      value = text();
    } else if constexpr (requires { value.has_value(); }) {
      if (number() != 0) take(value.emplace());
    } else if constexpr (requires { value.begin(); }) {
      if constexpr (requires { value.capacity(); }) value.resize(count());
      for (auto& each : value) take(each);
    } else {
      Value::fields(*this, value);
    }
  }

  ByteReader reader_;
};

// A value as VarintWriter writes it, and back.
template <typename Value>
std::string encoded(const Value& value) {
  VarintWriter writer;
  writer(value);
  return writer.take();
}
template <typename Value>
Value decoded(std::string_view bytes) {
  Value value;
  VarintReader reader(bytes);
  reader(value);
  return value;
}

}  // namespace dsckpt
