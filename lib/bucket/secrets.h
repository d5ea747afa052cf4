// The secrets that sign requests, and how they are kept hidden.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dsckpt {

// Overwrites a secret, so that nobody finds it in memory.
void wipe(std::string& text);

// Credentials for signing. The memory of secrets is wiped at their destruction.
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

// A server's `text`, safe to show. Any part of a secret in it, eight characters long or the whole
// of a shorter one, in small or capital letters, becomes "...". Then the text is cut to `most`
// bytes and made printable.
std::string shown(std::string_view text, std::span<const std::string_view> secrets,
                  size_t most = 300);

}  // namespace dsckpt
