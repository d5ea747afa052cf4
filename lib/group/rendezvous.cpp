#include "group/rendezvous.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <sstream>
#include <utility>

#include "base/random.h"
#include "base/sha256.h"
#include "dsckpt/error.h"
#include "io/folder.h"
#include "io/output_file.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr const char* kFirstWord = "dsckpt-group-1";
constexpr size_t kLongestFile = 64 << 10;

std::optional<Rendezvous::Token> token_of(const std::string& digits) {
  Rendezvous::Token token;
  if (digits.size() != 2 * token.size()) return std::nullopt;
  for (size_t i = 0; i < token.size(); ++i) {
    unsigned value = 0;
    if (std::sscanf(digits.c_str() + 2 * i, "%2x", &value) != 1) return std::nullopt;
    token[i] = static_cast<std::byte>(value);
  }
  return token;
}

}  // namespace

std::string Rendezvous::text() const {
  std::string text = std::string(kFirstWord) + " " + hex_digits(token) + " " + std::to_string(port);
  for (const std::string& address : addresses) text += " " + address;
  return text + "\n";
}

std::optional<Rendezvous> Rendezvous::parse(const std::string& text) {
  std::istringstream words(text);
  std::string first;
  std::string token_digits;
  unsigned port = 0;
  words >> first >> token_digits >> port;
  const std::optional<Token> token = token_of(token_digits);
  // Cut off in the middle it would lack its last character.
  if (!words || first != kFirstWord || !token || port == 0 || port > 0xffff ||
      text.back() != '\n') {
    return std::nullopt;
  }
  Rendezvous found{.port = static_cast<uint16_t>(port), .token = *token};
  for (std::string address; words >> address;) found.addresses.push_back(address);
  return found;
}

Rendezvous::Token new_token() {
  std::array<uint64_t, sizeof(Rendezvous::Token) / sizeof(uint64_t)> numbers;
  std::ranges::generate(numbers, random_number);
  return std::bit_cast<Rendezvous::Token>(numbers);
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

RendezvousFile::RendezvousFile(fs::path path, const Rendezvous& rendezvous)
    : path_(std::move(path)) {
  const auto fail = [&](int reason) {
    throw IoError({.file = path_.string()}, "cannot write where the other ranks would find rank 0",
                  reason)
        .with_hint("DSCKPT_GROUP_DIR names a folder that all ranks see and this user can write to");
  };
  std::optional<Folder> folder;
  try {
    folder = Folder::at(fs::absolute(path_).parent_path());
  } catch (const IoError& error) {
    fail(error.errno_value());
  }
  const std::string beside = path_.filename().string() + "-" + std::to_string(random_number());
  const int fd = folder->create(beside, 0600);  // for its owner alone
  if (fd < 0) fail(errno);
  int failed = write_all(fd, rendezvous.text()) ? 0 : errno;
  ::close(fd);
  if (failed == 0) failed = folder->rename(beside, *folder, path_.filename());
  if (failed == 0) return;
  folder->remove(beside);
  fail(failed);
}

RendezvousFile::~RendezvousFile() {
  ::unlink(path_.c_str());
}

std::optional<Rendezvous> read_rendezvous(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return std::nullopt;
  struct stat about {};
  std::string text(kLongestFile, '\0');
  const bool is_ours = ::fstat(fd, &about) == 0 && S_ISREG(about.st_mode) &&
                       about.st_uid == ::geteuid() && (about.st_mode & 077) == 0;
  const ssize_t got = is_ours ? ::read(fd, text.data(), text.size()) : -1;
  ::close(fd);
  if (got <= 0) return std::nullopt;
  text.resize(static_cast<size_t>(got));
  return Rendezvous::parse(text);
}

}  // namespace dsckpt
