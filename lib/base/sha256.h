// SHA-256 (FIPS 180-4), by nettle.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace dsckpt {

using Sha256Digest = std::array<std::byte, 32>;

// As sha256sum(1) prints it: 64 lower-case hexadecimal digits.
std::string hex_digits(const Sha256Digest& digest);

// One thread's.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void update(std::span<const std::byte> bytes);
  // Of all that came before; the next update() begins anew.
  Sha256Digest digest();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace dsckpt
