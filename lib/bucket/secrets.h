// What signs requests, and what must not be seen of it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dsckpt {

// So that nobody finds in memory what it held.
void wipe(std::string& text);

// What signs. The memory of the secrets is wiped when it goes.
struct Credentials {
  Credentials() = default;
  Credentials(const Credentials&) = delete;
  Credentials& operator=(const Credentials&) = delete;
  ~Credentials();

  std::string key = {};
  std::string secret = {};
  std::string token = {};  // of a session; "": none
  int64_t expires = 0;     // seconds since the epoch; 0: never
};

// `text`, which a server has sent, as it may be shown: whatever of it is in one of the secrets,
// eight characters or all of a shorter one, in small or capital letters, is "..."; then it is cut
// to `most` bytes and made printable.
std::string shown(std::string_view text, std::span<const std::string_view> secrets,
                  size_t most = 300);

}  // namespace dsckpt
