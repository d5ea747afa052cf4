#include "nodes/handshake.h"

#include <nettle/hmac.h>
#include <nettle/memops.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/random.h"
#include "nodes/sockets.h"

namespace dsckpt {
namespace {

using Challenge = Token;  // as many random bytes
using Proof = std::array<std::byte, SHA256_DIGEST_SIZE>;

enum class End : uint8_t { server, newcomer };

// `end` keeps a proof of one end from being one of the other.
Proof proof_of(End end, int rank, const Challenge& servers, const Challenge& newcomers,
               const Token& token) {
  std::string text(1, static_cast<char>(end));
  append_le<uint32_t>(text, static_cast<uint32_t>(rank));
  text += as_text(servers);
  text += as_text(newcomers);
  hmac_sha256_ctx hmac;
  hmac_sha256_set_key(&hmac, token.size(), reinterpret_cast<const uint8_t*>(token.data()));
  hmac_sha256_update(&hmac, text.size(), reinterpret_cast<const uint8_t*>(text.data()));
  Proof proof;
  hmac_sha256_digest(&hmac, proof.size(), reinterpret_cast<uint8_t*>(proof.data()));
  return proof;
}

bool are_equal(const Proof& a, const Proof& b) {
  return memeql_sec(a.data(), b.data(), b.size()) == 1;
}

}  // namespace

Token new_token() {
  std::array<uint64_t, sizeof(Token) / sizeof(uint64_t)> numbers;
  std::ranges::generate(numbers, random_number);
  return std::bit_cast<Token>(numbers);
}

bool welcome(int socket, const Token& token, int rank, std::chrono::milliseconds longest) {
  Talk talk(socket, longest);
  const Challenge ours = new_token();
  Challenge theirs;
  Proof proof;
  return talk.say(ours) && talk.hear(theirs) && talk.hear(proof) &&
         are_equal(proof, proof_of(End::newcomer, rank, ours, theirs, token)) &&
         talk.say(proof_of(End::server, rank, ours, theirs, token));
}

bool introduce(int socket, const Token& token, int rank, std::chrono::milliseconds longest) {
  Talk talk(socket, longest);
  const Challenge ours = new_token();
  Challenge theirs;
  Proof proof;
  return talk.hear(theirs) && talk.say(ours) &&
         talk.say(proof_of(End::newcomer, rank, theirs, ours, token)) && talk.hear(proof) &&
         are_equal(proof, proof_of(End::server, rank, theirs, ours, token));
}

}  // namespace dsckpt
