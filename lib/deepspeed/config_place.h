// The place of a value in a configuration, and its number, for messages.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace dsckpt {

// The most levels of a configuration's values.
inline constexpr size_t kMaxConfigDepth = 100;

// The place of a walk through a configuration; lives as long as the call for that place.
struct ConfigPlace {
  const ConfigPlace* outer = nullptr;
  std::string_view key;
  std::optional<size_t> index = {};  // of a list, instead of a key
  size_t depth = 0;

  ConfigPlace at(std::string_view name) const { return {this, name, {}, depth + 1}; }
  ConfigPlace at(size_t i) const { return {this, {}, i, depth + 1}; }

  // "zero_optimization.stage", "params.betas[1]", or "ds_config" for all of it.
  std::string text() const;
  // Throws UnsupportedError that names the place.
  [[noreturn]] void unsupported(const std::string& message) const;
};

// float.__repr__, or the form of Python's json for infinities and NaN.
std::string python_repr(double value);

}  // namespace dsckpt
