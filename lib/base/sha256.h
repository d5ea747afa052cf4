// SHA-256 (FIPS 180-4), by nettle.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace dsckpt {

using Sha256Digest = std::array<std::byte, 32>;

// The digest as sha256sum(1) prints it: 64 lower-case hexadecimal digits.
std::string hex_digits(const Sha256Digest& digest);

// For one thread.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void update(std::span<const std::byte> bytes);
  // The digest of all bytes so far. The next update() begins a new one.
  Sha256Digest digest();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace dsckpt
