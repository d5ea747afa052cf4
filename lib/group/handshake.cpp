#include "group/handshake.h"

#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
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
static_assert(sizeof(Answer) == sizeof(Challenge));

constexpr uint8_t kFirst = 0;
constexpr uint8_t kOther = 1;

// `who` keeps an answer of one end from being one of the other.
Answer answer_of(uint8_t who, const Challenge& first, std::span<const std::byte> other,
                 const Rendezvous::Token& token) {
  hmac_sha256_ctx hmac;
  hmac_sha256_set_key(&hmac, token.size(), reinterpret_cast<const uint8_t*>(token.data()));
  hmac_sha256_update(&hmac, 1, &who);
  hmac_sha256_update(&hmac, first.size(), reinterpret_cast<const uint8_t*>(first.data()));
  hmac_sha256_update(&hmac, other.size(), reinterpret_cast<const uint8_t*>(other.data()));
  Answer answer;
  hmac_sha256_digest(&hmac, answer.size(), reinterpret_cast<uint8_t*>(answer.data()));
  return answer;
}

bool are_equal(std::span<const std::byte> a, const Answer& b) {
  return a.size() == b.size() && memeql_sec(a.data(), b.data(), b.size()) == 1;
}

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

std::optional<Member> tell_each_other(Talk& talk, const GroupIdentity& identity,
                                      const Member& self) {
  std::string text;
  if (!talk.say_text(about(identity, self)) || !talk.hear_text(text)) return std::nullopt;
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

Greeting::Greeting(int socket) : socket_(socket), ours_(new_token()) {
  // It fits into what a new connection holds.
  const ssize_t put = ::send(socket, ours_.data(), ours_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  is_gone_ = put != static_cast<ssize_t>(ours_.size());
}

Greeting::State Greeting::hear(const Rendezvous::Token& token) {
  while (!is_gone_ && bytes_ < heard_.size()) {
    const ssize_t got =
        ::recv(socket_, heard_.data() + bytes_, heard_.size() - bytes_, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return State::waits;
    if (got <= 0) is_gone_ = true;
    if (got > 0) bytes_ += static_cast<size_t>(got);
  }
  if (is_gone_) return State::stranger;
  const std::span<const std::byte> all(heard_);
  const auto theirs = all.first(ours_.size());
  const bool has_token =
      are_equal(all.subspan(ours_.size()), answer_of(kOther, ours_, theirs, token));
  return has_token ? State::has_token : State::stranger;
}

std::optional<Member> Greeting::meet(const Rendezvous::Token& token, const GroupIdentity& identity,
                                     const Member& self, std::chrono::milliseconds longest) const {
  Talk talk(socket_, longest);
  const auto theirs = std::span<const std::byte>(heard_).first(ours_.size());
  if (!talk.say(answer_of(kFirst, ours_, theirs, token))) return std::nullopt;
  return tell_each_other(talk, identity, self);
}

std::optional<Member> welcome(int socket, const Rendezvous::Token& token,
                              const GroupIdentity& identity, const Member& self,
                              std::chrono::milliseconds longest) {
  const auto deadline = std::chrono::steady_clock::now() + longest;
  Greeting greeting(socket);
  for (;;) {
    const Greeting::State state = greeting.hear(token);
    if (state == Greeting::State::stranger) return std::nullopt;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return std::nullopt;
    if (state == Greeting::State::has_token) return greeting.meet(token, identity, self, left);
    pollfd polled{socket, POLLIN, 0};
    if (::poll(&polled, 1, static_cast<int>(left.count())) == 0) return std::nullopt;
  }
}

std::optional<Member> introduce(int socket, const Rendezvous::Token& token,
                                const GroupIdentity& identity, const Member& self,
                                std::chrono::milliseconds longest) {
  Talk talk(socket, longest);
  const Challenge ours = new_token();
  Challenge first;
  Answer answer;
  if (!talk.hear(first) || !talk.say(ours) || !talk.say(answer_of(kOther, first, ours, token)) ||
      !talk.hear(answer) || !are_equal(answer, answer_of(kFirst, first, ours, token))) {
    return std::nullopt;
  }
  return tell_each_other(talk, identity, self);
}

}  // namespace dsckpt
