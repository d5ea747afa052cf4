#include "base/sha256.h"

#include <nettle/sha2.h>

namespace dsckpt {

struct Sha256::Context {
  sha256_ctx sha;
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  sha256_init(&context_->sha);
}
Sha256::~Sha256() = default;

void Sha256::update(std::span<const std::byte> bytes) {
  sha256_update(&context_->sha, bytes.size(), reinterpret_cast<const uint8_t*>(bytes.data()));
}

Sha256Digest Sha256::digest() {
  Sha256Digest out;
  static_assert(sizeof out == SHA256_DIGEST_SIZE);
  sha256_digest(&context_->sha, out.size(), reinterpret_cast<uint8_t*>(out.data()));
  return out;
}

std::string hex_digits(const Sha256Digest& digest) {
  std::string text;
  for (const std::byte byte : digest) {
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte) >> 4];
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

}  // namespace dsckpt
