#include "group/group.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/kernels.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr uint32_t kHeartbeat = 0;
constexpr milliseconds kHeartbeatEvery{1000};
constexpr milliseconds kLongestPoll{200};
constexpr milliseconds kLongestFarewell{2000};
constexpr size_t kReadAtOnce = 256 << 10;

// In front of the bytes of a message: their number, the message's kind, and their CRC32.
constexpr size_t kHeaderBytes = sizeof(uint64_t) + 2 * sizeof(uint32_t);

std::string header_of(uint32_t kind, std::string_view bytes) {
  std::string header;
  append_le<uint64_t>(header, bytes.size());
  append_le<uint32_t>(header, kind);
  append_le<uint32_t>(header, crc32(0, as_byte_span(bytes)));
  return header;
}

std::string seconds_text(milliseconds time) {
  return std::to_string((time.count() + 500) / 1000) + " s";
}

std::string gone(int reason) {
  return std::string("is gone: it was killed, or its node is lost (") + std::strerror(reason) + ")";
}

// One connection. The group's thread's alone, but for the queue.
struct Connection {
  Connection(int fd, Member other) : socket(fd), member(std::move(other)) {}

  int socket;
  Member member;
  std::string in = {};               // what has come of the next message
  std::deque<std::string> out = {};  // under the group's mutex
  size_t out_begin = 0;              // sent of the first of them
  Clock::time_point heard = Clock::now();
  Clock::time_point spoken = Clock::now();
  std::string lost = {};  // why; under the group's mutex
  Traffic traffic = {};   // under the group's mutex
};

}  // namespace

struct Group::Impl {
  Impl(Member me, int ranks, std::vector<Peer> peers, milliseconds longest,
       std::function<void()> last, GroupSecret proof)
      : self(std::move(me)),
        size(ranks),
        silence(longest),
        at_end(std::move(last)),
        secret(std::move(proof)) {
    for (Peer& peer : peers) connections.emplace_back(peer.socket, std::move(peer.member));
    wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake < 0) throw IoError({}, "cannot wait for the other ranks", errno);
    thread = std::thread([this] { move_messages(); });
  }

  ~Impl() {
    stop = true;
    wake_up();
    thread.join();
    for (const Connection& connection : connections) ::close(connection.socket);
    ::close(wake);
  }

  void wake_up() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t put = ::write(wake, &one, sizeof one);
  }

  Connection& connection(int rank) {
    return *std::find_if(connections.begin(), connections.end(),
                         [&](const Connection& c) { return c.member.rank == rank; });
  }

  void lose(Connection& connection, std::string why) {
    const std::lock_guard lock(mutex);
    if (!connection.lost.empty()) return;
    connection.lost = std::move(why);
    connection.out.clear();
    arrived.notify_all();
  }

  void move_messages() {
    std::vector<pollfd> polled;
    Clock::time_point last = Clock::now();
    while (!stop) {
      polled.assign(1, {wake, POLLIN, 0});
      {
        const std::lock_guard lock(mutex);
        for (const Connection& c : connections) {
          const bool has_more = !c.out.empty();
          // A negative descriptor is passed over.
          polled.push_back({c.lost.empty() ? c.socket : -1,
                            static_cast<short>(POLLIN | (has_more ? POLLOUT : 0)), 0});
        }
      }
      ::poll(polled.data(), polled.size(), static_cast<int>(kLongestPoll.count()));
      const Clock::time_point now = Clock::now();
      // A process that was stopped has heard nobody: that is not their silence.
      const auto pause = now - last > 2 * kLongestPoll ? now - last : Clock::duration(0);
      last = now;
      // Long enough for one who has last heard of it a heartbeat before.
      if (pause + kHeartbeatEvery + 2 * kLongestPoll > silence) was_away = true;
      uint64_t woken = 0;
      [[maybe_unused]] const ssize_t got = ::read(wake, &woken, sizeof woken);
      for (size_t i = 0; i < connections.size(); ++i) {
        Connection& c = connections[i];
        if (polled[i + 1].fd < 0) continue;
        c.heard += pause;
        if ((polled[i + 1].revents & (POLLIN | POLLHUP | POLLERR)) != 0) read_from(c, now);
        if (now - c.spoken >= kHeartbeatEvery) queue(c, kHeartbeat, {});
        write_to(c, now);
        if (now - c.heard > silence) {
          lose(c, "has been silent for " +
                      seconds_text(std::chrono::duration_cast<milliseconds>(now - c.heard)));
        }
      }
    }
  }

  void read_from(Connection& c, Clock::time_point now) {
    std::array<char, 16 << 10> small;
    size_t read_now = 0;
    while (read_now < kReadAtOnce) {
      const ssize_t got = ::recv(c.socket, small.data(), small.size(), MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (got == 0) {
        take_messages(c);
        return lose(c, "is gone: it was killed, or its node is lost");
      }
      if (got < 0) return lose(c, gone(errno));
      c.heard = now;
      c.in.append(small.data(), static_cast<size_t>(got));
      read_now += static_cast<size_t>(got);
      if (!take_messages(c)) return;
    }
  }

  // False if what has come is no message.
  bool take_messages(Connection& c) {
    size_t begin = 0;
    while (c.in.size() - begin >= kHeaderBytes) {
      const ByteSpan header = as_byte_span(c.in).subspan(begin, kHeaderBytes);
      const auto bytes = load_le<uint64_t>(header.data());
      const auto kind = load_le<uint32_t>(header.data() + sizeof bytes);
      const auto crc = load_le<uint32_t>(header.data() + sizeof bytes + sizeof kind);
      if (bytes > kLargest) {
        lose(c, "has sent what is no message");
        return false;
      }
      if (c.in.size() - begin - kHeaderBytes < bytes) break;
      Message message{c.member.rank, kind, c.in.substr(begin + kHeaderBytes, bytes)};
      begin += kHeaderBytes + bytes;
      if (crc32(0, as_byte_span(message.bytes)) != crc) {
        lose(c, "has sent a message that arrived with another checksum");
        return false;
      }
      const std::lock_guard lock(mutex);
      ++c.traffic.messages_received;
      c.traffic.bytes_received += kHeaderBytes + bytes;
      if (kind == kHeartbeat) continue;
      inbox.push_back(std::move(message));
      arrived.notify_all();
    }
    c.in.erase(0, begin);
    return true;
  }

  void queue(Connection& c, uint32_t kind, std::string bytes) {
    std::string header = header_of(kind, bytes);
    const std::lock_guard lock(mutex);
    if (!c.lost.empty()) return;
    ++c.traffic.messages_sent;
    c.traffic.bytes_sent += header.size() + bytes.size();
    c.out.push_back(std::move(header));
    if (!bytes.empty()) c.out.push_back(std::move(bytes));
  }

  void write_to(Connection& c, Clock::time_point now) {
    std::unique_lock lock(mutex);
    while (!c.out.empty()) {
      const std::string& first = c.out.front();
      const ssize_t put = ::send(c.socket, first.data() + c.out_begin, first.size() - c.out_begin,
                                 MSG_DONTWAIT | MSG_NOSIGNAL);
      if (put < 0 && errno == EINTR) continue;
      if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (put < 0) {
        const int failed = errno;
        lock.unlock();
        // What it has said before it left is still there to be read.
        read_from(c, now);
        return lose(c, gone(failed));
      }
      c.spoken = now;
      c.out_begin += static_cast<size_t>(put);
      if (c.out_begin < first.size()) continue;
      c.out.pop_front();
      c.out_begin = 0;
      if (c.out.empty()) arrived.notify_all();
    }
  }

  // Under the mutex.
  const Connection* first_lost() const {
    for (const Connection& c : connections) {
      if (!c.lost.empty()) return &c;
    }
    return nullptr;
  }

  const Member self;
  const int size;
  const milliseconds silence;
  std::function<void()> at_end;
  const GroupSecret secret;
  std::deque<Connection> connections;
  int wake = -1;
  std::atomic<bool> stop{false};
  std::atomic<bool> was_away{false};  // so long that a peer may have taken it for lost
  mutable std::mutex mutex;           // of what follows, and of the connections' queues
  std::condition_variable arrived;
  std::deque<Message> inbox;
  std::shared_ptr<FileClient> files;
  std::thread thread;
};

Group::Group(Member self, int size, std::vector<Peer> peers, milliseconds silence,
             std::function<void()> at_end, GroupSecret secret)
    : impl_(std::make_unique<Impl>(std::move(self), size, std::move(peers), silence,
                                   std::move(at_end), std::move(secret))) {}

Group::~Group() = default;

int Group::rank() const {
  return impl_->self.rank;
}

int Group::size() const {
  return impl_->size;
}

const Member& Group::member(int rank) const {
  return rank == impl_->self.rank ? impl_->self : impl_->connection(rank).member;
}

const GroupSecret& Group::secret() const {
  return impl_->secret;
}

milliseconds Group::silence() const {
  return impl_->silence;
}

void Group::set_files(std::shared_ptr<FileClient> files) {
  const std::lock_guard lock(impl_->mutex);
  impl_->files = std::move(files);
}

std::shared_ptr<FileClient> Group::files() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->files;
}

void Group::send(int to, uint32_t kind, std::string bytes) {
  impl_->queue(impl_->connection(to), kind, std::move(bytes));
  impl_->wake_up();
}

void Group::send_to_all(uint32_t kind, const std::string& bytes) {
  for (Connection& connection : impl_->connections) impl_->queue(connection, kind, bytes);
  impl_->wake_up();
}

std::optional<Message> Group::receive(milliseconds wait) {
  std::unique_lock lock(impl_->mutex);
  impl_->arrived.wait_for(
      lock, wait, [this] { return !impl_->inbox.empty() || impl_->first_lost() != nullptr; });
  if (!impl_->inbox.empty()) {
    Message message = std::move(impl_->inbox.front());
    impl_->inbox.pop_front();
    return message;
  }
  if (const Connection* lost = impl_->first_lost()) {
    throw IoError({}, lost->member.name() + " " + lost->lost, 0);
  }
  return std::nullopt;
}

bool Group::is_lost(int rank) const {
  const std::lock_guard lock(impl_->mutex);
  return !impl_->connection(rank).lost.empty();
}

bool Group::is_given_up() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->was_away && impl_->first_lost() != nullptr;
}

void Group::close() {
  {
    std::unique_lock lock(impl_->mutex);
    impl_->arrived.wait_for(lock, kLongestFarewell, [this] {
      return std::all_of(impl_->connections.begin(), impl_->connections.end(),
                         [](const Connection& c) { return c.out.empty(); });
    });
  }
  const auto at_end = std::exchange(impl_->at_end, {});
  {
    const std::lock_guard lock(impl_->mutex);
    if (!at_end || impl_->first_lost() != nullptr) return;
  }
  at_end();
}

Traffic Group::traffic(int rank) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->connection(rank).traffic;
}

}  // namespace dsckpt
