#include "group/handshake.h"

#include <nettle/hmac.h>
#include <nettle/memops.h>

#include <array>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "group/sockets.h"

namespace dsckpt {
namespace {

using Challenge = Rendezvous::Token;  // as many random bytes
using Answer = std::array<std::byte, SHA256_DIGEST_SIZE>;

// `who` keeps an answer of one end from being one of the other.
Answer answer_to(const Challenge& challenge, const Rendezvous::Token& token, uint8_t who) {
  hmac_sha256_ctx hmac;
  hmac_sha256_set_key(&hmac, token.size(), reinterpret_cast<const uint8_t*>(token.data()));
  hmac_sha256_update(&hmac, 1, &who);
  hmac_sha256_update(&hmac, challenge.size(), reinterpret_cast<const uint8_t*>(challenge.data()));
  Answer answer;
  hmac_sha256_digest(&hmac, answer.size(), reinterpret_cast<uint8_t*>(answer.data()));
  return answer;
}

// Whether each end has the token.
bool authenticate(Talk& talk, const Rendezvous::Token& token, uint8_t self, uint8_t other) {
  const Challenge ours = new_token();
  Challenge theirs;
  Answer answer;
  if (!talk.say(ours) || !talk.hear(theirs) || !talk.say(answer_to(theirs, token, self)) ||
      !talk.hear(answer)) {
    return false;
  }
  const Answer expected = answer_to(ours, token, other);
  return memeql_sec(answer.data(), expected.data(), expected.size()) == 1;
}

constexpr uint8_t kFirst = 0;
constexpr uint8_t kOther = 1;

// What is said of oneself, in words apart.
std::string about(const GroupIdentity& identity, const Member& self) {
  return std::to_string(self.rank) + "\n" + std::to_string(identity.size) + "\n" + self.host +
         "\n" + identity.program;
}

struct About {
  int rank = -1;
  int size = 0;
  std::string host;
  std::string program;
};

About about_from(const std::string& text) {
  ByteReader reader(as_byte_span(text));
  About found;
  found.rank = std::stoi(std::string(reader.line()));
  found.size = std::stoi(std::string(reader.line()));
  found.host = reader.line();
  found.program = reader.text(reader.remaining());
  return found;
}

std::optional<Member> meet(int socket, const Rendezvous::Token& token,
                           const GroupIdentity& identity, const Member& self,
                           std::chrono::milliseconds longest, uint8_t us, uint8_t them) {
  Talk talk(socket, longest);
  std::string text;
  if (!authenticate(talk, token, us, them) || !talk.say_text(about(identity, self)) ||
      !talk.hear_text(text)) {
    return std::nullopt;
  }
  const About other = about_from(text);
  const Member member{other.rank, other.host};
  if (other.size != identity.size) {
    throw UsageError(member.name() + " was started as one of " + counted(other.size, "rank") +
                     ", and " + self.name() + " as one of " + std::to_string(identity.size));
  }
  if (other.program != identity.program) {
    throw UsageError(member.name() + " runs " + other.program + ", and " + self.name() + " runs " +
                     identity.program)
        .with_hint("all ranks need the same program");
  }
  return member;
}

}  // namespace

std::optional<Member> welcome(int socket, const Rendezvous::Token& token,
                              const GroupIdentity& identity, const Member& self,
                              std::chrono::milliseconds longest) {
  return meet(socket, token, identity, self, longest, kFirst, kOther);
}

std::optional<Member> introduce(int socket, const Rendezvous::Token& token,
                                const GroupIdentity& identity, const Member& self,
                                std::chrono::milliseconds longest) {
  return meet(socket, token, identity, self, longest, kOther, kFirst);
}

}  // namespace dsckpt
