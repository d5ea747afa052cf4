#include "base/unicode.h"

#include <array>
#include <charconv>

namespace dsckpt {

uint32_t next_character(std::string_view& text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const size_t size = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  uint32_t code = size == 1 ? first : first & (0xffU >> (size + 1));
  bool good = size > 0 && size <= text.size();
  for (size_t i = 1; good && i < size; ++i) {
    good = (byte(i) & 0xc0) == 0x80;
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr std::array<uint32_t, 5> kSmallest{0, 0, 0x80, 0x800, 0x10000};
  good = good && code >= kSmallest[size] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  text.remove_prefix(good ? size : 1);
  return good ? code : kInvalidCharacter;
}

std::string hex_digits(uint32_t code, size_t digits) {
  std::array<char, 8> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), code, 16).ptr;
  const std::string out(text.data(), end);
  return std::string(digits > out.size() ? digits - out.size() : 0, '0') + out;
}

bool turns_text(uint32_t code) {
  return code == 0x200e || code == 0x200f || code == 0x61c || (code >= 0x202a && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

bool is_no_text(uint32_t code) {
  return (code >= 0x80 && code < 0xa0) || (code >= 0xfdd0 && code <= 0xfdef) ||
         (code & 0xfffe) == 0xfffe || code == 0x2028 || code == 0x2029;
}

}  // namespace dsckpt
