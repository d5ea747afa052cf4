// Numbers and texts in few bytes, for messages between processes of this program.
//
// Numbers are LEB128: seven bits a byte, low bits first. Differences may be negative, so they are
// zigzag-coded first. A text is its length and its bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
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
  // Writes the given members of each row, such as &Row::size.
  template <typename Row, typename... Members>
  void rows(const std::vector<Row>& rows, Members... members) {
    number(rows.size());
    for (const Row& row : rows) (number(row.*members), ...);
  }

  std::string take() { return std::move(bytes_); }

 private:
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
  // Reads rows that VarintWriter::rows() wrote with the same members.
  template <typename Row, typename... Members>
  std::vector<Row> rows(Members... members) {
    std::vector<Row> rows(count());
    const auto take = [&](auto& member) {
      member = static_cast<std::remove_reference_t<decltype(member)>>(number());
    };
    for (Row& row : rows) (take(row.*members), ...);
    return rows;
  }
  bool at_end() const { return reader_.at_end(); }

 private:
  ByteReader reader_;
};

}  // namespace dsckpt
