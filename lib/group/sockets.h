// Sockets: TCP connections, and what is said and heard over one within a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace dsckpt {

// Owns a descriptor; -1: none.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  ~Socket();
  Socket(Socket&& other) noexcept : fd_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// On all interfaces; `port` 0: one that is free. Throws IoError.
Socket listen_on(uint16_t port);
uint16_t port_of(int socket);
// The next connection that has come within `longest`; else none.
Socket accept_from(const Socket& listening, std::chrono::milliseconds longest);
// None if nobody answers there in time. `host` is a name or numeric.
Socket connect_to(const std::string& host, uint16_t port, std::chrono::milliseconds longest);

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
