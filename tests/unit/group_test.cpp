#include "group/group.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/kernels.h"
#include "group/handshake.h"
#include "group/join.h"
#include "group/rendezvous.h"
#include "group/sockets.h"
#include "support/expect_error.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

using namespace std::chrono_literals;

std::array<int, 2> socket_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) std::abort();
  return ends;
}

// Rank 0 and the others, in one process.
class Ranks {
 public:
  explicit Ranks(int size, std::chrono::milliseconds silence = 60s) {
    std::vector<Group::Peer> peers;
    for (int rank = 1; rank < size; ++rank) {
      const auto ends = socket_pair();
      peers.push_back({ends[0], {rank, "n" + std::to_string(rank)}});
      others_.push_back(std::make_unique<Group>(Member{rank, "n" + std::to_string(rank)}, size,
                                                std::vector<Group::Peer>{{ends[1], {0, "n0"}}},
                                                silence));
    }
    first_ = std::make_unique<Group>(Member{0, "n0"}, size, std::move(peers), silence);
  }
  Group& operator[](int rank) {
    return rank == 0 ? *first_ : *others_[static_cast<size_t>(rank) - 1];
  }
  void leave(int rank) { others_[static_cast<size_t>(rank) - 1].reset(); }
  void lose_first() { first_.reset(); }

 private:
  std::unique_ptr<Group> first_;
  std::vector<std::unique_ptr<Group>> others_;
};

Message next(Group& group) {
  const auto message = group.receive(20s);
  if (!message) throw std::runtime_error("nothing came");
  return *message;
}

TEST(Group, MovesMessagesWholeAndInOrder) {
  Ranks ranks(3);
  const std::string large(30 << 20, 'x');
  for (uint32_t i = 1; i <= 100; ++i)
    ranks[2].send(0, i, std::string(i * 97, static_cast<char>(i)));
  ranks[1].send(0, 7, large);
  uint32_t expected = 1;
  for (int i = 0; i < 101; ++i) {
    const Message message = next(ranks[0]);
    if (message.from == 1) {
      EXPECT_EQ(message.kind, 7u);
      EXPECT_TRUE(message.bytes == large);
      continue;
    }
    EXPECT_EQ(message.kind, expected);
    EXPECT_EQ(message.bytes, std::string(expected * 97, static_cast<char>(expected)));
    ++expected;
  }
  ranks[0].send(1, 1, "to one");
  ranks[0].send(2, 2);
  EXPECT_EQ(next(ranks[1]).bytes, "to one");
  EXPECT_EQ(next(ranks[2]).bytes, "");
  EXPECT_FALSE(ranks[2].receive(1ms));
  EXPECT_EQ(ranks[0].member(2).name(), "rank 2 on n2");
  EXPECT_EQ(ranks[1].member(0).name(), "rank 0 on n0");
  EXPECT_GE(ranks[0].traffic(1).bytes_received, large.size());
  EXPECT_FALSE(ranks[0].is_lost(1));
}

TEST(Group, ALostRankIsNamedAfterItsLastMessage) {
  Ranks ranks(3);
  ranks[1].send(0, 1, "last words");
  ranks[1].close();
  ranks.leave(1);
  EXPECT_EQ(next(ranks[0]).bytes, "last words");
  EXPECT_ERROR(ranks[0].receive(20s), IoError,
               "rank 1 on n1 is gone: it was killed, or its node is lost");
  EXPECT_ERROR(ranks[0].receive(20s), IoError, "rank 1 on n1 is gone");
  EXPECT_TRUE(ranks[0].is_lost(1));
  EXPECT_FALSE(ranks[0].is_lost(2));
  // The others can still be spoken to.
  ranks[0].send(1, 1, "into the void");
  ranks[0].send(2, 1, "stop");
  EXPECT_EQ(next(ranks[2]).bytes, "stop");
  ranks.lose_first();
  EXPECT_ERROR(ranks[2].receive(20s), IoError, "rank 0 on n0 is gone");
}

TEST(Group, TheEndIsNotWaitedForWhereARankIsLost) {
  for (const bool is_lost : {false, true}) {
    const auto ends = socket_pair();
    bool ended = false;
    Group first({0, "n0"}, 2, {{ends[0], {1, "n1"}}}, 60s, [&] { ended = true; });
    if (is_lost) {
      ::close(ends[1]);
      EXPECT_ERROR(first.receive(20s), IoError, "rank 1 on n1 is gone");
    }
    first.close();
    EXPECT_EQ(ended, !is_lost);
    if (!is_lost) ::close(ends[1]);
  }
}

TEST(Group, ASilentRankIsLost) {
  const auto ends = socket_pair();
  Group first({0, "n0"}, 2, {{ends[0], {1, "n1"}}}, 2500ms);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_ERROR(first.receive(60s), IoError, "rank 1 on n1 has been silent for");
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 2400ms);
  ::close(ends[1]);
  // One that only lives is not silent.
  Ranks ranks(2, 2500ms);
  EXPECT_FALSE(ranks[0].receive(4s));
}

TEST(Group, WhatIsNoMessageIsNotTaken) {
  const auto refused = [](const std::string& bytes, const std::string& why) {
    const auto ends = socket_pair();
    Group first({0, "n0"}, 2, {{ends[0], {1, "n1"}}}, 60s);
    ASSERT_EQ(::write(ends[1], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    EXPECT_ERROR(first.receive(20s), IoError, why);
    ::close(ends[1]);
  };
  const auto message = [](uint64_t size, const std::string& bytes, uint32_t crc) {
    std::string all;
    append_le<uint64_t>(all, size);
    append_le<uint32_t>(all, 1);
    append_le<uint32_t>(all, crc);
    return all + bytes;
  };
  const uint32_t crc = crc32(0, as_byte_span("abc"));
  refused(message(3, "abc", crc ^ 1), "another checksum");
  refused(message(~uint64_t{0}, "abc", crc), "no message");
}

TEST(Handshake, TellsFriendsFromStrangers) {
  const Rendezvous::Token token = new_token();
  const GroupIdentity identity{4, "dsckpt 1"};
  const auto meet = [&](const Rendezvous::Token& other, const GroupIdentity& theirs) {
    const auto ends = socket_pair();
    auto welcomed = std::async(std::launch::async, [&] {
      return welcome(ends[0], token, identity, {0, "n0"}, 3s);
    });
    std::optional<Member> first;
    std::string refused;
    try {
      first = introduce(ends[1], other, theirs, {3, "n3"}, 3s);
    } catch (const UsageError& error) {
      refused = error.what();
    }
    ::close(ends[1]);
    std::optional<Member> other_end;
    try {
      other_end = welcomed.get();
    } catch (const UsageError& error) {
      EXPECT_NE(refused, "");
    }
    ::close(ends[0]);
    EXPECT_EQ(first.has_value(), other_end.has_value());
    if (first) {
      EXPECT_EQ(first->name(), "rank 0 on n0");
      EXPECT_EQ(other_end->name(), "rank 3 on n3");
    }
    return first ? "met" : refused;
  };
  EXPECT_EQ(meet(token, identity), "met");
  EXPECT_EQ(meet(new_token(), identity), "");
  EXPECT_EQ(meet(token, {5, "dsckpt 1"}),
            "rank 0 on n0 was started as one of 4 ranks, and rank 3 on n3 as one of 5");
  EXPECT_EQ(meet(token, {4, "dsckpt 2"}),
            "rank 0 on n0 runs dsckpt 1, and rank 3 on n3 runs dsckpt 2");
}

TEST(Handshake, ItsOwnWordsSentBackProveNothing) {
  const auto ends = socket_pair();
  auto echo = std::async(std::launch::async, [&] {
    std::array<char, 256> bytes;
    for (ssize_t got; (got = ::read(ends[1], bytes.data(), bytes.size())) > 0;) {
      if (::write(ends[1], bytes.data(), static_cast<size_t>(got)) != got) break;
    }
  });
  EXPECT_FALSE(welcome(ends[0], new_token(), {2, "dsckpt"}, {0, "n0"}, 1s));
  ::shutdown(ends[0], SHUT_RDWR);
  echo.get();
  ::close(ends[0]);
  ::close(ends[1]);
}

// Whoever comes without the token hears a challenge, and nothing that depends on the token.
TEST(Handshake, AnswersNobodyWhoHasNotTheToken) {
  const auto ends = socket_pair();
  auto welcomed = std::async(std::launch::async, [&] {
    const auto member = welcome(ends[0], new_token(), {2, "dsckpt"}, {0, "n0"}, 3s);
    ::shutdown(ends[0], SHUT_RDWR);
    return member;
  });
  const std::string said(64, 'x');
  ASSERT_EQ(::write(ends[1], said.data(), said.size()), static_cast<ssize_t>(said.size()));
  std::string heard;
  std::array<char, 256> bytes;
  for (ssize_t got; (got = ::read(ends[1], bytes.data(), bytes.size())) > 0;) {
    heard.append(bytes.data(), static_cast<size_t>(got));
  }
  EXPECT_FALSE(welcomed.get());
  EXPECT_EQ(heard.size(), 32u);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(Rendezvous, IsALineOfTextInAPrivateFile) {
  const test::TempFolder folder;
  const Rendezvous rendezvous{{"10.0.0.1", "fd00::1", "127.0.0.1"}, 4711, new_token()};
  const auto parsed = Rendezvous::parse(rendezvous.text()).value();
  EXPECT_EQ(parsed.addresses, rendezvous.addresses);
  EXPECT_EQ(parsed.port, rendezvous.port);
  EXPECT_EQ(parsed.token, rendezvous.token);
  const std::string text = rendezvous.text();
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(Rendezvous::parse(text.substr(0, size)));
  }
  const auto path = folder.path() / "where";
  EXPECT_FALSE(read_rendezvous(path));
  folder.write("where", "left by another run");
  EXPECT_FALSE(read_rendezvous(path));
  {
    const RendezvousFile file(path, rendezvous);
    EXPECT_EQ(read_rendezvous(path).value().port, 4711);
    ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
    EXPECT_FALSE(read_rendezvous(path)) << "others can read the token";
    ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
    std::filesystem::create_symlink(path, folder.path() / "link");
    EXPECT_FALSE(read_rendezvous(folder.path() / "link"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_ERROR(RendezvousFile(folder.path() / "no" / "where", rendezvous), IoError,
               "cannot write where the other ranks would find rank 0");
}

class Join : public testing::Test {
 protected:
  using Variables = std::map<std::string, std::string>;

  std::unique_ptr<Group> join(int rank, int size, Variables variables = {},
                              GroupEngine engine = GroupEngine::automatic,
                              const std::string& program = "dsckpt test") {
    variables.insert({{"DSCKPT_GROUP_RANK", std::to_string(rank)},
                      {"DSCKPT_GROUP_SIZE", std::to_string(size)},
                      {"DSCKPT_GROUP_DIR", folder_.path().string()}});
    GroupOptions options;
    options.engine = engine;
    options.gathering = gathering_;
    options.program = program;
    return join_group(
        options,
        [&](const char* name) -> const char* {
          const auto found = variables.find(name);
          return found == variables.end() ? nullptr : found->second.c_str();
        },
        cancelled_);
  }

  std::vector<std::unique_ptr<Group>> join_all(int size, const Variables& variables) {
    std::vector<std::future<std::unique_ptr<Group>>> joining;
    for (int rank = 0; rank < size; ++rank) {
      joining.push_back(
          std::async(std::launch::async, [&, rank] { return join(rank, size, variables); }));
    }
    std::vector<std::unique_ptr<Group>> all;
    for (auto& one : joining) all.push_back(one.get());
    return all;
  }

  test::TempFolder folder_;
  std::atomic<bool> cancelled_{false};
  std::chrono::seconds gathering_{20};
};

// The kind of the error that another rank says.
template <typename Function>
std::optional<ErrorKind> refused(Function&& join) {
  try {
    join();
  } catch (const GroupRefused& refused) {
    return refused.kind();
  }
  return std::nullopt;
}

TEST_F(Join, ByAPrivateFile) {
  const auto ranks = join_all(5, {});
  for (int rank = 1; rank < 5; ++rank) {
    ranks[static_cast<size_t>(rank)]->send(0, 1, std::to_string(rank));
    ranks[0]->send(rank, 2, "hello " + std::to_string(rank));
  }
  for (int rank = 1; rank < 5; ++rank) {
    const Message message = next(*ranks[0]);
    EXPECT_EQ(message.bytes, std::to_string(message.from));
    EXPECT_EQ(next(*ranks[static_cast<size_t>(rank)]).bytes, "hello " + std::to_string(rank));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

// One that was free a moment ago.
std::string free_port() {
  const int probe = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  if (::bind(probe, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::getsockname(probe, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    std::abort();
  }
  ::close(probe);
  return std::to_string(ntohs(address.sin_port));
}

constexpr const char* kToken = "a secret of sixteen or more";

TEST_F(Join, ByAnAddressThatIsGiven) {
  const std::string address = "localhost:" + free_port();
  const auto ranks =
      join_all(3, {{"DSCKPT_GROUP_ADDRESS", address}, {"DSCKPT_GROUP_TOKEN", kToken}});
  ranks[2]->send(0, 1, "here");
  EXPECT_EQ(next(*ranks[0]).from, 2);
  EXPECT_ERROR(join(1, 3, {{"DSCKPT_GROUP_ADDRESS", address}}), UsageError, "go together");
  EXPECT_ERROR(join(1, 3, {{"DSCKPT_GROUP_ADDRESS", "localhost"}, {"DSCKPT_GROUP_TOKEN", kToken}}),
               UsageError, "HOST:PORT");
  EXPECT_ERROR(
      join(1, 3, {{"DSCKPT_GROUP_ADDRESS", address}, {"DSCKPT_GROUP_TOKEN", "fifteen letters"}}),
      UsageError, "has 15 characters; it needs 16 at least");
}

TEST_F(Join, WhoWaitsInVainSaysForWhom) {
  gathering_ = std::chrono::seconds(1);
  EXPECT_ERROR(join(0, 3), IoError, "of 3 ranks that DSCKPT_GROUP_RANK has started, 1 have come");
  EXPECT_ERROR(join(2, 3), IoError, "has not found rank 0 within 1 s");
  cancelled_ = true;
  EXPECT_ERROR(join(0, 3), InterruptedError, "interrupted");
  EXPECT_EQ(refused([&] { join(1, 3); }), ErrorKind::interrupted);
}

TEST_F(Join, ThoseThatHaveComeHearOfTheFirstThatOthersHaveNot) {
  gathering_ = std::chrono::seconds(1);
  auto first = std::async(std::launch::async, [&] { return join(0, 3); });
  EXPECT_EQ(refused([&] { join(1, 3); }), ErrorKind::io);
  EXPECT_ERROR(first.get(), IoError, "2 have come within 1 s; rank 2 has not");
}

// Launchers wake what they end.
TEST_F(Join, OneThatWasStoppedMeanwhileSaysNothing) {
  gathering_ = std::chrono::seconds(1);
  const pid_t child = ::fork();
  if (child == 0) {
    int status = 0;
    try {
      join(1, 2);
    } catch (const GroupRefused& refused) {
      status = refused.kind() == ErrorKind::io ? 1 : 2;
    } catch (...) {
      status = 3;
    }
    ::_exit(status);
  }
  ASSERT_GT(child, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ASSERT_EQ(::kill(child, SIGSTOP), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(4000));
  ASSERT_EQ(::kill(child, SIGCONT), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

TEST_F(Join, TwoProcessesOfOneRankAreRefused) {
  gathering_ = std::chrono::seconds(2);  // rank 2 does not come
  std::vector<std::future<std::unique_ptr<Group>>> same;
  for (int i = 0; i < 2; ++i) {
    same.push_back(std::async(std::launch::async, [&] { return join(1, 3); }));
  }
  EXPECT_ERROR(join(0, 3), UsageError, "two processes are rank 1");
  for (auto& one : same) EXPECT_EQ(refused([&] { one.get(); }), ErrorKind::usage);
}

TEST_F(Join, WhoComesAfterOneWasRefusedHearsOfIt) {
  auto first = std::async(std::launch::async, [&] { return join(0, 4); });
  const auto join_another = [&] { join(3, 4, {}, GroupEngine::automatic, "dsckpt other"); };
  EXPECT_EQ(refused(join_another), ErrorKind::usage);
  auto late = std::async(std::launch::async, [&] { return join(1, 4); });
  EXPECT_EQ(refused([&] { join(2, 4); }), ErrorKind::usage);
  EXPECT_EQ(refused([&] { late.get(); }), ErrorKind::usage);
  EXPECT_ERROR(first.get(), UsageError, " runs dsckpt other, and rank 0 on ");
}

// Such as one that looks for open ports, or that says a little and waits.
TEST_F(Join, WhoSaysNothingOrLittleKeepsNobodyWaiting) {
  const std::string port = free_port();
  const Variables variables = {{"DSCKPT_GROUP_ADDRESS", "localhost:" + port},
                               {"DSCKPT_GROUP_TOKEN", kToken}};
  gathering_ = std::chrono::seconds(20);  // one after the other they would take longer
  auto joining = std::async(std::launch::async, [&] { return join(0, 2, variables); });
  std::vector<Socket> silent;
  while (silent.size() < 8) {
    Socket socket = connect_to("localhost", static_cast<uint16_t>(std::stoi(port)), 1s);
    if (socket.get() < 0) continue;
    const std::string little(silent.size() * 9, 'x');  // up to 63 of the 64 bytes that show a token
    EXPECT_EQ(::send(socket.get(), little.data(), little.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(little.size()));
    silent.push_back(std::move(socket));
    std::this_thread::sleep_for(10ms);
  }
  const auto second = join(1, 2, variables);
  const auto first = joining.get();
  first->send(1, 1, "here");
  EXPECT_EQ(next(*second).bytes, "here");
}

TEST_F(Join, AloneWhereNothingElseIsSaid) {
  EXPECT_EQ(join(0, 1), nullptr);
  EXPECT_EQ(join(1, 3, {}, GroupEngine::none), nullptr);
  EXPECT_ERROR(join(0, 1, {}, GroupEngine::tcp), UsageError, "no launcher");
  EXPECT_ERROR(join(0, 2, {{"DSCKPT_MPI", "/no/such.so"}}, GroupEngine::mpi), UsageError,
               "cannot be loaded");
  EXPECT_ERROR(join(0, 2, {{"DSCKPT_MPI", "libc.so.6"}}, GroupEngine::mpi), UsageError,
               "is no MPI plug-in of this release");
}

}  // namespace
}  // namespace dsckpt
