#include "group/join.h"

#include <nettle/pbkdf2.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "base/host.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "group/handshake.h"
#include "group/mpi_plugin.h"
#include "group/rendezvous.h"
#include "group/sockets.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLongestHandshake{5000};
constexpr milliseconds kLongestFinalize{10'000};
constexpr milliseconds kPause{50};
// In which the others hear of rank 0 that all have come, when the time for it is over; or come to
// hear that one was refused.
constexpr milliseconds kLongestWord{5000};
// Ranks that wait for the same thing in vain do not say so at the same time: the next one is ended
// meanwhile.
constexpr milliseconds kNextSpeaker{2000};
// A pause that took so long: the process was stopped meanwhile, by a scheduler or a hand.
constexpr milliseconds kLongestPause{3000};
// Of those that have not shown the token. Of more, the first that came is let go.
constexpr size_t kMostUnknown = 256;
// What a person types is stretched (RFC 8018): whoever waits where rank 0 should, and is taken for
// it, hears what guesses can be tried on.
constexpr size_t kShortestToken = 16;
constexpr unsigned kRounds = 200'000;
constexpr std::string_view kSalt = "dsckpt group";
// What rank 0 says then: a byte, else 1 and the kind of its error.
constexpr uint8_t kAllHaveCome = 0;
constexpr const char* kAloneHint =
    "a tool that was started by one rank of another program inherits what its launcher says: "
    "--group none runs it alone";

// What the ranks of one launch have to know to find each other.
struct Gathering {
  const GroupOptions& options;
  const Launch& launch;
  const std::atomic<bool>& cancelled;
  Member self;
  Clock::time_point deadline;

  GroupIdentity identity() const { return {launch.size, options.program}; }
  size_t others() const { return static_cast<size_t>(launch.size) - 1; }
  // A launcher that ends all ranks interrupts all of them; rank 0 says so.
  void check_cancelled() const {
    if (!cancelled) return;
    if (self.rank != 0) throw GroupRefused(ErrorKind::interrupted);
    throw InterruptedError();
  }
  bool is_late() const { return Clock::now() > deadline; }
  std::string seconds() const { return std::to_string(options.gathering.count()) + " s"; }
};

Rendezvous rendezvous_at(const Socket& listening) {
  return {own_addresses(), port_of(listening.get()), new_token()};
}

// Those that this rank is connected with, and the token that all have shown.
struct Met {
  std::vector<Group::Peer> peers;
  Rendezvous::Token token;
};

// Somebody who has not shown that it has the token.
struct Unknown {
  explicit Unknown(Socket come) : socket(std::move(come)), greeting(socket.get()) {}

  Socket socket;
  Greeting greeting;
};

struct Guests {
  std::map<int, std::pair<Socket, Member>> welcome;
  size_t refused = 0;  // that belong to none of them
  std::deque<std::unique_ptr<Unknown>> unknown = {};
};

// Somebody who has the token. Who has it shows it at once; who has not, such as one that looks for
// open ports, or says a byte now and then, must not keep the others waiting.
std::unique_ptr<Unknown> next_with_token(const Socket& listening, const Rendezvous::Token& token,
                                         Guests& come) {
  std::vector<pollfd> polled{{listening.get(), POLLIN, 0}};
  for (const auto& one : come.unknown) polled.push_back({one->socket.get(), POLLIN, 0});
  if (::poll(polled.data(), polled.size(), static_cast<int>(kPause.count())) < 1) return nullptr;
  for (size_t i = 0; i < come.unknown.size(); ++i) {
    if (polled[i + 1].revents == 0) continue;
    const Greeting::State state = come.unknown[i]->greeting.hear(token);
    if (state == Greeting::State::waits) continue;
    std::unique_ptr<Unknown> one = std::move(come.unknown[i]);
    come.unknown.erase(come.unknown.begin() + static_cast<std::ptrdiff_t>(i));
    return state == Greeting::State::has_token ? std::move(one) : nullptr;
  }
  if (Socket next = accept_from(listening, {}); next.get() >= 0) {
    if (come.unknown.size() == kMostUnknown) come.unknown.pop_front();
    come.unknown.push_back(std::make_unique<Unknown>(std::move(next)));
  }
  return nullptr;
}

void say_byte(const Socket& socket, uint8_t byte) {
  [[maybe_unused]] const ssize_t put =
      ::send(socket.get(), &byte, sizeof byte, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// Waits for somebody to come. Throws UsageError if that is none of the group's.
void wait_for_one(const Gathering& gathering, const Socket& listening,
                  const Rendezvous::Token& token, Guests& come) {
  const std::unique_ptr<Unknown> one = next_with_token(listening, token, come);
  if (one == nullptr) return;
  std::optional<Member> member;
  try {
    member = one->greeting.meet(token, gathering.identity(), gathering.self, kLongestHandshake);
  } catch (const UsageError&) {
    ++come.refused;
    throw;
  }
  if (!member || member->rank < 1 || member->rank >= gathering.launch.size) return;
  if (come.welcome.contains(member->rank)) {
    const UsageError error("two processes are " + member->name());
    say_byte(one->socket, 1 + static_cast<uint8_t>(error.kind()));
    throw error;
  }
  come.welcome.emplace(member->rank, std::pair(std::move(one->socket), *member));
}

// Waits until all others have come.
void wait_for_all(const Gathering& gathering, const Socket& listening,
                  const Rendezvous::Token& token, Guests& come) {
  while (come.welcome.size() < gathering.others()) {
    gathering.check_cancelled();
    if (gathering.is_late()) {
      int missing = 1;
      while (come.welcome.contains(missing)) ++missing;
      throw IoError({},
                    "of " + counted(gathering.launch.size, "rank") + " that " +
                        gathering.launch.by + " has started, " +
                        std::to_string(come.welcome.size() + 1) + " have come within " +
                        gathering.seconds() + "; rank " + std::to_string(missing) + " has not",
                    0)
          .with_hint(kAloneHint);
    }
    wait_for_one(gathering, listening, token, come);
  }
}

// Waits for those that come after one was refused: they would look for rank 0 in vain.
void wait_for_the_late(const Gathering& gathering, const Socket& listening,
                       const Rendezvous::Token& token, Guests& come) {
  const auto longest = std::min(gathering.deadline, Clock::now() + kLongestWord);
  while (come.welcome.size() + come.refused < gathering.others() && Clock::now() < longest &&
         !gathering.cancelled) {
    try {
      wait_for_one(gathering, listening, token, come);
    } catch (const UsageError&) {
      // What is wrong with the first one is said.
    }
  }
}

// Of rank 0: the others, which hear whether all have come.
Met welcome_all(const Gathering& gathering, const Socket& listening,
                const Rendezvous::Token& token) {
  Guests come;
  const auto say_to_all = [&](uint8_t byte) {
    for (const auto& [rank, guest] : come.welcome) say_byte(guest.first, byte);
  };
  try {
    wait_for_all(gathering, listening, token, come);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::usage) wait_for_the_late(gathering, listening, token, come);
    say_to_all(1 + static_cast<uint8_t>(error.kind()));
    throw;
  }
  say_to_all(kAllHaveCome);
  std::vector<Group::Peer> peers;
  for (auto& [rank, peer] : come.welcome) peers.push_back({peer.first.release(), peer.second});
  return {std::move(peers), token};
}

// Of the others: returns when rank 0 says that all have come. Where it is lost rank 1 says so, as
// it does later.
void wait_for_word(const Gathering& gathering, const Socket& socket, const Member& first) {
  const auto lost = [&](const std::string& how) {
    if (gathering.self.rank != 1) throw GroupRefused(ErrorKind::io);
    throw IoError({}, first.name() + " " + how, 0);
  };
  for (;;) {
    gathering.check_cancelled();
    if (Clock::now() > gathering.deadline + kLongestWord) {
      lost("has not said within " + gathering.seconds() + " whether all ranks have come");
    }
    pollfd polled{socket.get(), POLLIN, 0};
    if (::poll(&polled, 1, static_cast<int>(kPause.count())) != 1) continue;
    uint8_t byte = 0;
    const ssize_t got = ::recv(socket.get(), &byte, sizeof byte, MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) lost("is gone: it was killed, or its node is lost");
    if (byte == kAllHaveCome) return;
    throw GroupRefused(static_cast<ErrorKind>(byte - 1));
  }
}

// What introduce() does; rank 0 finds the same differences, and says which.
std::optional<Member> introduce_oneself(const Gathering& gathering, const Socket& socket,
                                        const Rendezvous::Token& token) {
  try {
    return introduce(socket.get(), token, gathering.identity(), gathering.self, kLongestHandshake);
  } catch (const UsageError& error) {
    throw GroupRefused(error.kind());
  }
}

// Of the others: `find` says where rank 0 is, and may say something else the next time.
Met go_to_first(const Gathering& gathering,
                const std::function<std::optional<Rendezvous>()>& find) {
  std::string why = "nothing says where it is";
  bool was_stopped = false;
  const auto pause = [&] {
    const Clock::time_point begin = Clock::now();
    std::this_thread::sleep_for(kPause);
    was_stopped |= Clock::now() - begin > kLongestPause;
  };
  for (;; pause()) {
    gathering.check_cancelled();
    if (gathering.is_late()) {
      // Rank 0 has said that this one did not come.
      if (was_stopped) throw GroupRefused(ErrorKind::io);
      throw IoError({},
                    gathering.self.name() + " of " + std::to_string(gathering.launch.size) +
                        ", as " + gathering.launch.by + " says, has not found rank 0 within " +
                        gathering.seconds() + ": " + why,
                    0)
          .with_hint(kAloneHint);
    }
    const std::optional<Rendezvous> rendezvous = find();
    if (!rendezvous) continue;
    for (const std::string& address : rendezvous->addresses) {
      Socket socket = connect_to(address, rendezvous->port, std::chrono::seconds(2));
      if (socket.get() < 0) {
        why = "nobody answers at " + address + ", port " + std::to_string(rendezvous->port);
        continue;
      }
      const std::optional<Member> first = introduce_oneself(gathering, socket, rendezvous->token);
      if (!first) {
        why = "whoever answers at " + address + " is of another group";
        continue;
      }
      wait_for_word(gathering, socket, *first);
      return {{{socket.release(), *first}}, rendezvous->token};
    }
  }
}

// TCP, where neither MPI nor the user says where rank 0 is.
fs::path rendezvous_path(const Launch& launch, const Environment& environment) {
  const char* folder = environment("DSCKPT_GROUP_DIR");
  if (launch.name.empty() && folder == nullptr) {
    throw UsageError(launch.by + " gives its runs no name by which the ranks could find each other")
        .with_hint(
            "DSCKPT_GROUP_DIR names a new folder that all ranks see; or build the plug-in: " +
            how_to_get_mpi());
  }
  if (folder == nullptr) folder = environment("HOME");
  std::string name = ".dsckpt-group-";
  for (const char c : launch.name) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '-';
  return fs::path(folder == nullptr ? "." : folder) / name;
}

// "n1:4000" in DSCKPT_GROUP_ADDRESS, and the token as a text that is not short.
std::optional<Rendezvous> given_rendezvous(const Environment& environment) {
  const char* address = environment("DSCKPT_GROUP_ADDRESS");
  const char* secret = environment("DSCKPT_GROUP_TOKEN");
  if (address == nullptr && secret == nullptr) return std::nullopt;
  if (address == nullptr || secret == nullptr || *secret == '\0') {
    throw UsageError("DSCKPT_GROUP_ADDRESS and DSCKPT_GROUP_TOKEN go together");
  }
  const std::string text = address;
  const size_t colon = text.rfind(':');
  const int port = colon == std::string::npos ? 0 : std::atoi(text.c_str() + colon + 1);
  if (port < 1 || port > 0xffff) {
    throw UsageError("DSCKPT_GROUP_ADDRESS is HOST:PORT, and not '" + text + "'");
  }
  const std::string_view typed = secret;
  if (typed.size() < kShortestToken) {
    throw UsageError("DSCKPT_GROUP_TOKEN has " + counted(typed.size(), "character") +
                     "; it needs " + std::to_string(kShortestToken) + " at least")
        .with_hint("`openssl rand -hex 16` makes one");
  }
  Rendezvous given{{text.substr(0, colon)}, static_cast<uint16_t>(port), {}};
  pbkdf2_hmac_sha256(typed.size(), reinterpret_cast<const uint8_t*>(typed.data()), kRounds,
                     kSalt.size(), reinterpret_cast<const uint8_t*>(kSalt.data()),
                     given.token.size(), reinterpret_cast<uint8_t*>(given.token.data()));
  return given;
}

Met meet_by_tcp(const Gathering& gathering, const Environment& environment) {
  const std::optional<Rendezvous> given = given_rendezvous(environment);
  if (given) {
    if (gathering.self.rank != 0) return go_to_first(gathering, [&] { return given; });
    return welcome_all(gathering, listen_on(given->port), given->token);
  }
  const fs::path path = rendezvous_path(gathering.launch, environment);
  if (gathering.self.rank != 0) {
    return go_to_first(gathering, [&] { return read_rendezvous(path); });
  }
  const Socket listening = listen_on(0);
  const Rendezvous rendezvous = rendezvous_at(listening);
  const RendezvousFile file(path, rendezvous);
  return welcome_all(gathering, listening, rendezvous.token);
}

// MPI is called by one thread, as MPI_THREAD_FUNNELED wants it; and a call that never returns, of
// an installation that does not fit its launcher, does not keep the tool from saying so.
class MpiThread {
 public:
  using Call = std::function<const char*()>;  // returns an error, or nullptr

  MpiThread() : state_(std::make_shared<State>()) {
    std::thread([state = state_] {
      std::unique_lock lock(state->mutex);
      while (!state->over) {
        state->changed.wait(lock, [&] { return state->over || state->next != nullptr; });
        const auto next = std::exchange(state->next, nullptr);
        lock.unlock();
        if (next) (*next)();
        lock.lock();
      }
    }).detach();
  }
  ~MpiThread() {
    const std::lock_guard lock(state_->mutex);
    state_->over = true;
    state_->changed.notify_all();
  }
  MpiThread(const MpiThread&) = delete;
  MpiThread& operator=(const MpiThread&) = delete;

  // False after `longest`: nobody waits for the thread then. Throws IoError for what MPI says.
  bool call(const std::string& what, milliseconds longest, Call call) {
    auto task = std::make_shared<std::packaged_task<const char*()>>(std::move(call));
    std::future<const char*> result = task->get_future();
    {
      const std::lock_guard lock(state_->mutex);
      state_->next = task;
    }
    state_->changed.notify_all();
    if (result.wait_for(longest) != std::future_status::ready) return false;
    if (const char* error = result.get()) throw IoError({}, what + ": " + error, 0);
    return true;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::shared_ptr<std::packaged_task<const char*()>> next;
    bool over = false;
  };
  std::shared_ptr<State> state_;
};

constexpr size_t kRendezvousBytes = 4096;

Met meet_by_mpi(const Gathering& gathering, const MpiFunctions& mpi, MpiThread& thread) {
  // It outlives a call that does not return.
  struct State {
    int rank = 0;
    int size = 0;
    std::array<char, kRendezvousBytes> text{};
  };
  const auto state = std::make_shared<State>();
  // Where it is in vain rank 0 says so, and if it is the reason rank 1.
  const auto call = [&](const std::string& what, MpiThread::Call function) {
    const int rank = gathering.self.rank;
    const auto left = std::chrono::duration_cast<milliseconds>(gathering.deadline - Clock::now()) +
                      (rank == 0 ? milliseconds(0) : kNextSpeaker);
    if (thread.call(what, std::max(milliseconds(1), left), std::move(function))) return;
    if (rank > 1) throw GroupRefused(ErrorKind::io);
    throw IoError({}, what + " has not returned within " + gathering.seconds(), 0)
        .with_hint(kAloneHint);
  };
  call("MPI_Init", [state, &mpi] { return mpi.start(&state->rank, &state->size); });
  if (state->size != gathering.launch.size || state->rank != gathering.launch.rank) {
    throw UsageError(gathering.launch.by + " says rank " + std::to_string(gathering.launch.rank) +
                     " of " + std::to_string(gathering.launch.size) + ", and MPI (" +
                     mpi.library() + ") rank " + std::to_string(state->rank) + " of " +
                     std::to_string(state->size))
        .with_hint(
            "the plug-in was built for another MPI than the launcher's; --group tcp needs "
            "none");
  }
  Socket listening;
  Rendezvous rendezvous;
  if (state->rank == 0) {
    listening = listen_on(0);
    rendezvous = rendezvous_at(listening);
    const std::string text = rendezvous.text();
    std::copy_n(text.begin(), std::min(text.size(), kRendezvousBytes - 1), state->text.begin());
  }
  call("MPI_Bcast", [state, &mpi] { return mpi.from_first(state->text.data(), kRendezvousBytes); });
  if (state->rank == 0) return welcome_all(gathering, listening, rendezvous.token);
  return go_to_first(gathering, [state] { return Rendezvous::parse(state->text.data()); });
}

const MpiFunctions* choose_mpi(const GroupOptions& options, const Launch& launch,
                               const Environment& environment) {
  if (options.engine == GroupEngine::tcp) return nullptr;
  if (options.engine == GroupEngine::automatic && !launch.has_mpi) return nullptr;
  const MpiFunctions* mpi = load_mpi(environment);
  if (mpi == nullptr && options.engine == GroupEngine::mpi) {
    throw UsageError("--group mpi: there is no MPI plug-in").with_hint(how_to_get_mpi());
  }
  return mpi;
}

}  // namespace

std::unique_ptr<Group> join_group(const GroupOptions& options, const Environment& environment,
                                  const std::atomic<bool>& cancelled) {
  if (options.engine == GroupEngine::none) return nullptr;
  const std::optional<Launch> launch = find_launch(environment);
  if (!launch) {
    if (options.engine == GroupEngine::automatic) return nullptr;
    throw UsageError("--group: no launcher has started several ranks of this");
  }
  const Gathering gathering{
      options, *launch, cancelled, {launch->rank, host_name()}, Clock::now() + options.gathering};
  const MpiFunctions* mpi = choose_mpi(options, *launch, environment);
  Met met;
  std::function<void()> at_end;
  if (mpi != nullptr) {
    const auto thread = std::make_shared<MpiThread>();
    met = meet_by_mpi(gathering, *mpi, *thread);
    at_end = [thread, mpi] { thread->call("MPI_Finalize", kLongestFinalize, mpi->finish); };
  } else {
    met = meet_by_tcp(gathering, environment);
  }
  return std::make_unique<Group>(gathering.self, launch->size, std::move(met.peers),
                                 options.silence, std::move(at_end),
                                 GroupSecret{met.token, options.program});
}

}  // namespace dsckpt
