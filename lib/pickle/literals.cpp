#include "pickle/literals.h"

#include "dsckpt/error.h"
#include "pickle/nodes.h"

namespace dsckpt::pickle {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_octal(char c) {
  return c >= '0' && c <= '7';
}

bool parse_hex(std::string_view digits, uint32_t& out) {
  out = 0;
  for (const char c : digits) {
    const int digit = hex_digit(c);
    if (digit < 0) return false;
    out = out << 4 | static_cast<uint32_t>(digit);
  }
  return true;
}

}  // namespace

std::string unquote(std::string_view line) {
  while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.remove_suffix(1);
  if (line.size() < 2 || line.front() != line.back() ||
      (line.front() != '\'' && line.front() != '"')) {
    throw CorruptError({}, "a STRING without its quotes");
  }
  line = line.substr(1, line.size() - 2);
  std::string out;
  for (size_t i = 0; i < line.size();) {
    const char c = line[i++];
    if (c != '\\') {
      out.push_back(c);
      continue;
    }
    if (i == line.size()) throw CorruptError({}, "a STRING that ends in a backslash");
    const char escape = line[i++];
    static constexpr std::string_view kEscapes = "\\'\"bftnrva";
    static constexpr std::string_view kMeanings = "\\'\"\b\f\t\n\r\v\a";
    if (const size_t known = kEscapes.find(escape); known != std::string_view::npos) {
      out.push_back(kMeanings[known]);
    } else if (is_octal(escape)) {
      int code = escape - '0';
      for (int k = 0; k < 2 && i < line.size() && is_octal(line[i]); ++k) {
        code = code * 8 + (line[i++] - '0');
      }
      out.push_back(static_cast<char>(code & 0xff));
    } else if (escape == 'x') {
      uint32_t code = 0;
      if (line.size() - i < 2 || !parse_hex(line.substr(i, 2), code)) {
        throw CorruptError({}, "a STRING with a bad \\x escape");
      }
      i += 2;
      out.push_back(static_cast<char>(code));
    } else {
      out.push_back('\\');
      out.push_back(escape);
    }
  }
  return out;
}

std::string decode_raw_unicode(std::string_view line) {
  std::string out;
  for (size_t i = 0; i < line.size();) {
    const char c = line[i++];
    if (c != '\\' || i == line.size()) {
      append_utf8(out, static_cast<unsigned char>(c));
      continue;
    }
    const char escape = line[i++];
    if (escape != 'u' && escape != 'U') {
      out.push_back('\\');
      append_utf8(out, static_cast<unsigned char>(escape));
      continue;
    }
    const size_t digits = escape == 'u' ? 4 : 8;
    uint32_t code = 0;
    if (line.size() - i < digits || !parse_hex(line.substr(i, digits), code) || code > 0x10ffff) {
      throw CorruptError({}, std::string("a UNICODE with a bad \\") + escape + " escape");
    }
    i += digits;
    append_utf8(out, code);
  }
  return out;
}

}  // namespace dsckpt::pickle
