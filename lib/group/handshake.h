// Handshake: two ends of a new connection show each other that they have the group's token, and
// who they are.
//
// Rank 0 says a random challenge. The newcomer answers with a challenge of its own and an
// HMAC-SHA256 (RFC 2104) of both under the token; only then does rank 0 answer with another one. So
// neither the token nor anything that could be used again goes over the network, and a stranger who
// comes hears nothing that a guess of the token could be tried on.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "group/group.h"
#include "group/rendezvous.h"

namespace dsckpt {

// The facts that must be equal at both ends.
struct GroupIdentity {
  int size = 1;
  std::string program = {};  // name and version
};

// For rank 0: a new connection, until it is known whether its other end has the token. Nobody waits
// for it meanwhile. One thread.
class Greeting {
 public:
  enum class State : uint8_t { waits, has_token, stranger };

  // Says the challenge. The socket must outlive it.
  explicit Greeting(int socket);
  // Takes what has come, without waiting for more.
  State hear(const Rendezvous::Token& token);
  // Once it has the token: who it is; nothing if it takes longer. Throws UsageError for a rank of
  // the group that runs another program or thinks that the group has another size.
  std::optional<Member> meet(const Rendezvous::Token& token, const GroupIdentity& identity,
                             const Member& self, std::chrono::milliseconds longest) const;

 private:
  const int socket_;
  const Rendezvous::Token ours_;
  std::array<std::byte, 2 * sizeof(Rendezvous::Token)> heard_{};  // its challenge and answer
  size_t bytes_ = 0;                                              // of it
  bool is_gone_ = false;
};

// For rank 0: the member at the other end of `socket`, by a Greeting. Returns nothing for strangers
// to this group, and for those that take longer. Throws what Greeting::meet() throws.
std::optional<Member> welcome(int socket, const Rendezvous::Token& token,
                              const GroupIdentity& identity, const Member& self,
                              std::chrono::milliseconds longest);
// For the others: rank 0, as it calls itself; nothing if the other end is not rank 0 of this group.
// Throws UsageError for what welcome() throws there.
std::optional<Member> introduce(int socket, const Rendezvous::Token& token,
                                const GroupIdentity& identity, const Member& self,
                                std::chrono::milliseconds longest);

}  // namespace dsckpt
