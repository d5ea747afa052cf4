// Rendezvous: how the ranks of a group find rank 0 and know that it is theirs.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace dsckpt {

// The facts that rank 0 tells the others, by MPI or in a private file. A process with the token
// belongs to the group; the token is never sent over the network.
struct Rendezvous {
  using Token = std::array<std::byte, 32>;
  std::vector<std::string> addresses = {};  // numeric, IPv4 and IPv6, of rank 0's interfaces
  uint16_t port = 0;
  Token token{};

  // One line of text, and back; nothing for what is none.
  std::string text() const;
  static std::optional<Rendezvous> parse(const std::string& text);
};

// A token of random numbers (base/random.h). Throws IoError.
Rendezvous::Token new_token();
// The addresses of all interfaces that are up, the loopback's last. Throws IoError.
std::vector<std::string> own_addresses();

// A file that only its owner can read, in a folder that all ranks see. Removed with the object.
class RendezvousFile {
 public:
  // Puts it in the place of whatever another run of that name has left. Throws IoError.
  RendezvousFile(std::filesystem::path path, const Rendezvous& rendezvous);
  ~RendezvousFile();
  RendezvousFile(const RendezvousFile&) = delete;
  RendezvousFile& operator=(const RendezvousFile&) = delete;

 private:
  std::filesystem::path path_;
};
// Nothing if there is none, or none of this user's that nobody else can read.
std::optional<Rendezvous> read_rendezvous(const std::filesystem::path& path);

}  // namespace dsckpt
