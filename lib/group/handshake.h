// Handshake: two ends of a new connection show each other that they have the group's token, and
// who they are.
//
// Each end answers the other's random challenge with an HMAC-SHA256 (RFC 2104) under the token, so
// that neither the token nor anything that could be used again goes over the network.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "group/group.h"
#include "group/rendezvous.h"

namespace dsckpt {

// What both ends must have in common.
struct GroupIdentity {
  int size = 1;
  std::string program = {};  // name and version
};

// Of rank 0: who is at the other end of `socket`; nothing for whoever is none of this group, or
// takes longer. Throws UsageError for a rank of the group that runs another program or thinks that
// the group has another size.
std::optional<Member> welcome(int socket, const Rendezvous::Token& token,
                              const GroupIdentity& identity, const Member& self,
                              std::chrono::milliseconds longest);
// Of the others: rank 0, as it calls itself; nothing where the other end is not rank 0 of this
// group. Throws UsageError for what welcome() throws there.
std::optional<Member> introduce(int socket, const Rendezvous::Token& token,
                                const GroupIdentity& identity, const Member& self,
                                std::chrono::milliseconds longest);

}  // namespace dsckpt
