#include "nodes/sockets.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>

#include "base/bytes.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

using Clock = std::chrono::steady_clock;

void set_up(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

}  // namespace

uint16_t port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

FileDescriptor listen() {
  for (const int family : {AF_INET6, AF_INET}) {
    FileDescriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (socket.get() < 0) continue;
    const int on = 1;
    const int off = 0;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in6 any6{};
    sockaddr_in any4{};
    sockaddr* address = reinterpret_cast<sockaddr*>(&any4);
    socklen_t size = sizeof any4;
    if (family == AF_INET6) {
      ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
      any6.sin6_family = AF_INET6;
      address = reinterpret_cast<sockaddr*>(&any6);
      size = sizeof any6;
    } else {
      any4.sin_family = AF_INET;
    }
    if (::bind(socket.get(), address, size) == 0 && ::listen(socket.get(), SOMAXCONN) == 0) {
      return socket;
    }
  }
  throw IoError({}, "cannot listen for the other ranks", errno);
}

std::vector<std::string> own_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) throw IoError({}, "cannot list network interfaces", errno);
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> all(first, ::freeifaddrs);
  std::vector<std::string> addresses;
  std::vector<std::string> of_this_host;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    std::array<char, INET6_ADDRSTRLEN> text{};
    const void* address = nullptr;
    if (entry->ifa_addr->sa_family == AF_INET) {
      address = &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr;
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      const auto* ipv6 = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
      if (IN6_IS_ADDR_LINKLOCAL(&ipv6->sin6_addr)) continue;  // means another host elsewhere
      address = &ipv6->sin6_addr;
    }
    if (address == nullptr ||
        ::inet_ntop(entry->ifa_addr->sa_family, address, text.data(), text.size()) == nullptr) {
      continue;
    }
    const bool loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    (loopback ? of_this_host : addresses).emplace_back(text.data());
  }
  addresses.insert(addresses.end(), of_this_host.begin(), of_this_host.end());
  return addresses;
}

FileDescriptor accept_from(const FileDescriptor& listening, std::chrono::milliseconds longest) {
  pollfd polled{listening.get(), POLLIN, 0};
  if (::poll(&polled, 1, static_cast<int>(longest.count())) != 1) return FileDescriptor();
  FileDescriptor socket(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (socket.get() >= 0) set_up(socket.get());
  return socket;
}

FileDescriptor connect_to(const std::string& host, uint16_t port,
                          std::chrono::milliseconds longest) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &first) != 0) {
    return FileDescriptor();
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(first, ::freeaddrinfo);
  for (const addrinfo* entry = first; entry != nullptr; entry = entry->ai_next) {
    FileDescriptor socket(
        ::socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket.get() < 0) continue;
    if (::connect(socket.get(), entry->ai_addr, entry->ai_addrlen) != 0 && errno != EINPROGRESS) {
      continue;
    }
    pollfd polled{socket.get(), POLLOUT, 0};
    int failed = 0;
    socklen_t size = sizeof failed;
    if (::poll(&polled, 1, static_cast<int>(longest.count())) == 1 &&
        ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &failed, &size) == 0 && failed == 0) {
      set_up(socket.get());
      return socket;
    }
  }
  return FileDescriptor();
}

bool Talk::say(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (!wait(POLLOUT)) return false;
    const ssize_t put = ::send(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (put < 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
  return true;
}

bool Talk::hear(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    if (!wait(POLLIN)) return false;
    const ssize_t got = ::recv(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return true;
}

bool Talk::say_text(const std::string& text) {
  std::string all;
  append_le<uint32_t>(all, static_cast<uint32_t>(text.size()));
  return say(as_byte_span(all + text));
}

bool Talk::hear_text(std::string& text, size_t longest) {
  std::array<std::byte, sizeof(uint32_t)> size;
  if (!hear(size)) return false;
  const auto bytes = load_le<uint32_t>(size.data());
  if (bytes > longest) return false;
  text.resize(bytes);
  return hear(std::as_writable_bytes(std::span(text)));
}

bool Talk::wait(short event) const {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now());
  pollfd polled{socket_, event, 0};
  return left.count() > 0 && ::poll(&polled, 1, static_cast<int>(left.count())) == 1;
}

}  // namespace dsckpt
