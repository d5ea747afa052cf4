// Handshake: two ends of a new connection show each other that they have the same token.
//
// The server says a random challenge. The newcomer answers with a challenge of its own and an
// HMAC-SHA256 (RFC 2104) of both under the token. Only then does the server answer with another
// one. So neither the token nor anything that could be used again goes over the network. A stranger
// hears nothing that could test a guess of the token.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>

namespace dsckpt {

// The ranks of one run have it, by a file that only their user can read.
using Token = std::array<std::byte, 32>;
// Random numbers from base/random.h. Throws IoError.
Token new_token();

// For the server of `rank`: false for strangers, and for those that take longer.
bool welcome(int socket, const Token& token, int rank, std::chrono::milliseconds longest);
// For others: false if the other end is not the server of `rank`, or takes longer.
bool introduce(int socket, const Token& token, int rank, std::chrono::milliseconds longest);

}  // namespace dsckpt
