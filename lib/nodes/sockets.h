// Sockets: TCP connections, and messages over them within a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/file_descriptor.h"

namespace dsckpt {

// On all interfaces, at a port that is free. Throws IoError.
FileDescriptor listen();
uint16_t port_of(int socket);
// The addresses of all interfaces that are up, numeric, the loopback's last. Throws IoError.
std::vector<std::string> own_addresses();
// The next connection that has come within `longest`; else none.
FileDescriptor accept_from(const FileDescriptor& listening, std::chrono::milliseconds longest);
// None if nobody answers there in time. `host` is a name or numeric.
FileDescriptor connect_to(const std::string& host, uint16_t port,
                          std::chrono::milliseconds longest);

// Sends and receives over a socket, with a time limit. Members return false when the time is over,
// and on failure. One thread.
class Talk {
 public:
  Talk(int socket, std::chrono::milliseconds longest)
      : socket_(socket), deadline_(std::chrono::steady_clock::now() + longest) {}

  bool say(std::span<const std::byte> bytes);
  bool hear(std::span<std::byte> bytes);
  // Its length, four bytes, and the text; of at most `longest` bytes.
  bool say_text(const std::string& text);
  bool hear_text(std::string& text, size_t longest = 4096);

 private:
  bool wait(short event) const;

  int socket_;
  std::chrono::steady_clock::time_point deadline_;
};

}  // namespace dsckpt
