#include "base/keyed_hash.h"

#include <bit>
#include <cstring>

#include "base/random.h"

namespace dsckpt {
namespace {

struct HashKey {
  uint64_t k0;
  uint64_t k1;
};

const HashKey& process_key() {
  static const HashKey key{random_number(), random_number()};
  return key;
}

class SipHash13 {
 public:
  explicit SipHash13(const HashKey& key)
      : v0_(key.k0 ^ 0x736f6d6570736575),
        v1_(key.k1 ^ 0x646f72616e646f6d),
        v2_(key.k0 ^ 0x6c7967656e657261),
        v3_(key.k1 ^ 0x7465646279746573) {}

  void add(uint64_t word) {
    v3_ ^= word;
    round();
    v0_ ^= word;
  }
  uint64_t finish() {
    v2_ ^= 0xff;
    round();
    round();
    round();
    return v0_ ^ v1_ ^ v2_ ^ v3_;
  }

 private:
  void round() {
    v0_ += v1_;
    v1_ = std::rotl(v1_, 13) ^ v0_;
    v0_ = std::rotl(v0_, 32);
    v2_ += v3_;
    v3_ = std::rotl(v3_, 16) ^ v2_;
    v0_ += v3_;
    v3_ = std::rotl(v3_, 21) ^ v0_;
    v2_ += v1_;
    v1_ = std::rotl(v1_, 17) ^ v2_;
    v2_ = std::rotl(v2_, 32);
  }

  uint64_t v0_;
  uint64_t v1_;
  uint64_t v2_;
  uint64_t v3_;
};

}  // namespace

uint64_t keyed_hash(std::string_view bytes) {
  SipHash13 hash(process_key());
  const uint64_t size = bytes.size();
  for (; bytes.size() >= sizeof(uint64_t); bytes.remove_prefix(sizeof(uint64_t))) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof word);
    hash.add(word);
  }
  uint64_t last = 0;
  if (!bytes.empty()) std::memcpy(&last, bytes.data(), bytes.size());
  hash.add(last | size << 56);
  return hash.finish();
}

uint64_t keyed_hash(uint64_t number) {
  SipHash13 hash(process_key());
  hash.add(number);
  hash.add(uint64_t{sizeof number} << 56);
  return hash.finish();
}

}  // namespace dsckpt
