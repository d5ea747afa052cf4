// Group: the processes, called ranks, that run one conversion together on several nodes.
//
// Rank 0 is connected with every other rank, and they with nobody else. It decides and they obey,
// so all messages go to it or come from it. A message is a kind and some bytes, arrives whole and
// in order, and is compared with its CRC32. A thread of each process moves the messages and shows
// every second that it lives, whatever the others are busy with.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsckpt {

struct Message {
  int from = 0;
  uint32_t kind = 0;  // whoever uses the group decides what it means; not 0
  std::string bytes = {};
};

// A rank as the others know it.
struct Member {
  int rank = 0;
  std::string host = {};
  // "rank 3 on n4"
  std::string name() const { return "rank " + std::to_string(rank) + " on " + host; }
};

// The traffic over a connection, heartbeats included, as this process counts.
struct Traffic {
  uint64_t messages_sent = 0;
  uint64_t messages_received = 0;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
};

class FileClient;

// The proof to others that a process belongs to the group (handshake.h).
struct GroupSecret {
  std::array<std::byte, 32> token{};
  std::string program = {};  // name and version: that of all ranks
};

// send() and receive() from any thread.
class Group {
 public:
  // A connected socket (which the group then owns) and who is at its other end.
  struct Peer {
    int socket;
    Member member;
  };
  // Rank 0 has all others as its peers, in the order of their ranks; they have rank 0 alone. A peer
  // that is not heard of for `silence` is lost. `at_end` is called at the end of close(), unless a
  // peer is lost: it may wait for all of them.
  Group(Member self, int size, std::vector<Peer> peers, std::chrono::milliseconds silence,
        std::function<void()> at_end = {}, GroupSecret secret = {});
  // Leaves without a word: the others find this rank lost, unless they have left before.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const;
  int size() const;
  // The member of this rank and, at rank 0, of all; others know rank 0.
  const Member& member(int rank) const;
  const GroupSecret& secret() const;
  std::chrono::milliseconds silence() const;

  // How this rank reads files that only others have; nullptr: all ranks see the same files.
  void set_files(std::shared_ptr<FileClient> files);
  std::shared_ptr<FileClient> files() const;

  // Queues a message to a peer; what is sent to a lost one is dropped. `bytes` at most kLargest.
  static constexpr uint64_t kLargest = uint64_t{1} << 30;
  void send(int to, uint32_t kind, std::string bytes = {});
  // For rank 0: the same to each of its peers.
  void send_to_all(uint32_t kind, const std::string& bytes = {});
  // The next message; nothing if none has come within `wait`. Throws IoError that names the peer
  // once one is lost, after all messages that it had sent before.
  std::optional<Message> receive(std::chrono::milliseconds wait);
  bool is_lost(int rank) const;
  // This process was stopped for so long that others took it for lost, and one of them has left.
  // They have said so.
  bool is_given_up() const;

  // Waits until what was queued is sent, two seconds at most, and leaves the group: to be called
  // when nobody waits for this rank any more. Throws what `at_end` throws.
  void close();

  // The traffic of the connection with that rank.
  Traffic traffic(int rank) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsckpt
