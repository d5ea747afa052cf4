#include "base/text.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <locale>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/unicode.h"
#include "dsckpt/error.h"

namespace dsckpt {

std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kShown = 4;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += (i == 0 ? "'" : ", '") + names[i] + "'";
  }
  if (names.size() > kShown) text += " and " + std::to_string(names.size() - kShown) + " more";
  return text;
}

std::string printable(const std::string& text, Newlines newlines) {
  const auto is_plain = [](char c) { return c >= 0x20 && c < 0x7f; };
  if (std::all_of(text.begin(), text.end(), is_plain)) return text;
  std::string out;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view before = rest;
    const uint32_t code = next_character(rest);
    const std::string_view character = before.substr(0, before.size() - rest.size());
    const bool is_byte = character.size() == 1;
    if (code == '\n' && newlines == Newlines::escape) {
      out += "\\n";
    } else if (code == '\t') {
      out += "\\t";
    } else if (is_byte && code != '\n' && (code < 0x20 || code >= 0x7f)) {
      out += "\\x" + hex_digits(static_cast<unsigned char>(character.front()), 2);
    } else if (turns_text(code) || is_no_text(code)) {
      out += "\\u{" + hex_digits(code, 4) + "}";
    } else {
      out += character;
    }
  }
  return out;
}

std::string shell_word(const std::string& text) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("%+,-./:=@_").find(c) != std::string_view::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), is_plain)) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

std::string_view without_blanks(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

std::optional<double> real_of(std::string_view text) {
  std::istringstream stream{std::string(text)};
  stream.imbue(std::locale::classic());
  double value = 0;
  stream >> std::noskipws >> value;
  return !stream.fail() && stream.peek() == EOF ? std::optional(value) : std::nullopt;
}

std::string grouped(uint64_t value) {
  std::string digits = std::to_string(value);
  for (size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

std::string grouped_count(uint64_t count, const std::string& noun) {
  return grouped(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string human_bytes(uint64_t bytes) {
  constexpr std::array kUnits{"B", "KB", "MB", "GB", "TB", "PB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1000 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return text.data();
}

std::string human_percent(double part) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", part * 100);
  return text;
}

std::string human_seconds(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f s", seconds);
  return text.data();
}

uint64_t parse_size(std::string_view text, const std::string& what) {
  constexpr std::array<std::pair<std::string_view, double>, 8> kUnits{{{"KB", 1e3},
                                                                       {"MB", 1e6},
                                                                       {"GB", 1e9},
                                                                       {"TB", 1e12},
                                                                       {"KIB", 0x1p10},
                                                                       {"MIB", 0x1p20},
                                                                       {"GIB", 0x1p30},
                                                                       {"TIB", 0x1p40}}};
  const auto bad = [&] {
    return UsageError("'" + std::string(text) + "' is not a " + what +
                      ": digits and KB, MB, GB or TB, as in 5GB");
  };
  std::string_view rest = text;
  while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  while (!rest.empty() && rest.back() == ' ') rest.remove_suffix(1);
  if (rest.size() < 3) throw bad();
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  size_t letters = 0;
  while (letters < rest.size() && is_letter(rest[rest.size() - 1 - letters])) ++letters;
  std::string unit(rest.substr(rest.size() - letters));
  for (char& c : unit) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  rest.remove_suffix(letters);
  while (!rest.empty() && rest.back() == ' ') rest.remove_suffix(1);
  const std::optional<double> value = real_of(rest);
  for (const auto& [name, multiplier] : kUnits) {
    if (unit != name || !value) continue;
    const double bytes = *value * multiplier;
    if (!(bytes >= 1) || bytes > 9e18) throw bad();
    return static_cast<uint64_t>(bytes);
  }
  throw bad();
}

}  // namespace dsckpt
