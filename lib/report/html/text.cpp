#include "report/html/text.h"

#include <array>
#include <charconv>

#include "base/unicode.h"

namespace dsckpt {
namespace {

void append_utf8(std::string& out, uint32_t code) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((code >> shift) & 0x3f)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | (code >> 6));
    tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | (code >> 12));
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xf0 | (code >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

void append_character(std::string& out, uint32_t code) {
  switch (code) {
    case '&':
      out += "&amp;";
      return;
    case '<':
      out += "&lt;";
      return;
    case '>':
      out += "&gt;";
      return;
    case '"':
      out += "&quot;";
      return;
    case '\'':
      out += "&#39;";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      break;
  }
  if (code < 0x20 || code == 0x7f) {
    out += "\\x" + hex_digits(code, 2);
  } else if (turns_text(code) || is_no_text(code)) {
    out += "\\u{" + hex_digits(code, 4) + "}";
  } else {
    append_utf8(out, code);
  }
}

std::string escaped(std::string_view text) {
  std::string out;
  while (!text.empty()) append_character(out, next_character(text));
  return out;
}

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
}

}  // namespace

std::string html_text(std::string_view text, size_t max) {
  if (text.size() <= max) return escaped(text);
  size_t head = max / 2;
  size_t tail = text.size() - max / 2;
  while (head > 0 && is_continuation(text[head])) --head;
  while (tail < text.size() && is_continuation(text[tail])) ++tail;
  return escaped(text.substr(0, head)) + "…" + escaped(text.substr(tail));
}

size_t character_count(std::string_view utf8) {
  size_t count = 0;
  for (const char c : utf8) count += !is_continuation(c);
  return count;
}

std::string decimal(double value, int digits) {
  std::array<char, 400> text{};  // the largest double has 309 digits
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, digits)
          .ptr;
  std::string out(text.data(), end);
  if (out.find('.') == std::string::npos) return out;
  out.erase(out.find_last_not_of('0') + 1);
  if (out.back() == '.') out.pop_back();
  return out == "-0" ? "0" : out;
}

std::string percent(uint64_t part, uint64_t whole) {
  const double share =
      whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
  if (part > 0 && share < 0.1) return "< 0.1 %";
  std::array<char, 32> text{};
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), share, std::chars_format::fixed, 1).ptr;
  return std::string(text.data(), end) + " %";
}

}  // namespace dsckpt
