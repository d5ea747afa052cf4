#include "deepspeed/config_place.h"

#include <array>
#include <charconv>
#include <cmath>

#include "dsckpt/error.h"

namespace dsckpt {

std::string ConfigPlace::text() const {
  if (outer == nullptr) return "ds_config";
  const std::string before = outer->outer == nullptr ? "" : outer->text();
  if (index) return before + "[" + std::to_string(*index) + "]";
  return (before.empty() ? "" : before + ".") + std::string(key);
}

void ConfigPlace::unsupported(const std::string& message) const {
  throw UnsupportedError({.member = text()}, message);
}

std::string python_repr(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  std::array<char, 32> buffer;
  const auto print = [&](std::chars_format format) {
    const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format).ptr;
    return std::string(buffer.data(), end);
  };
  const std::string scientific = print(std::chars_format::scientific);
  const int exponent = std::stoi(scientific.substr(scientific.find('e') + 1));
  if (exponent < -4 || exponent >= 16) return scientific;
  const std::string fixed = print(std::chars_format::fixed);
  return fixed.find('.') == fixed.npos ? fixed + ".0" : fixed;
}

}  // namespace dsckpt
