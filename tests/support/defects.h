// Damage for the tests of readers: cut-off files and flipped bits.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "dsckpt/error.h"

namespace dsckpt::test {

// The kind of the Error that leaves `body`, if one does. (in_context hands on Errors, not their
// leaves.)
template <typename Body>
std::optional<ErrorKind> error_kind(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.kind();
  }
  return std::nullopt;
}

// Calls `check` with every proper prefix of `bytes`, shortest first.
inline void for_each_truncation(const std::string& bytes,
                                const std::function<void(const std::string&, size_t)>& check) {
  for (size_t size = 0; size < bytes.size(); ++size) check(bytes.substr(0, size), size);
}

// Calls `check` with every copy of `bytes` that differs in one bit of [begin, end).
inline void for_each_bit_flip(const std::string& bytes, size_t begin, size_t end,
                              const std::function<void(const std::string&, size_t)>& check) {
  std::string damaged = bytes;
  for (size_t at = begin; at < end; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      damaged[at] = static_cast<char>(damaged[at] ^ 1 << bit);
      check(damaged, at);
      damaged[at] = bytes[at];
    }
  }
}

}  // namespace dsckpt::test
