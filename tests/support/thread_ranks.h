// Groups whose ranks are threads of the test.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "exec/follower.h"
#include "exec/rank_words.h"
#include "group/group.h"

namespace dsckpt::test {

// The exit status that run_ranks() ends the others with.
inline constexpr int kEndStatus = 5;

// Calls `lead` as rank 0 of a group whose other ranks follow, and ends them. Returns their
// statuses. `progress` is that of all others.
inline std::vector<int> run_ranks(int ranks, Progress& progress, const Answer& answer,
                                  const std::function<void(Group&)>& lead) {
  constexpr std::chrono::seconds kSilence{60};
  std::vector<Group::Peer> peers;
  std::vector<std::future<int>> others;
  for (int rank = 1; rank < ranks; ++rank) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) std::abort();
    const Member member{rank, "n" + std::to_string(rank)};
    peers.push_back({ends[0], member});
    others.push_back(std::async(std::launch::async, [=, &progress, &answer] {
      Group group(member, ranks, {{ends[1], {0, "n0"}}}, kSilence);
      return follow(group, 2, progress, answer);
    }));
  }
  {
    Group group({0, "n0"}, ranks, std::move(peers), kSilence);
    lead(group);
    group.send_to_all(static_cast<uint32_t>(Word::end), encode_number(kEndStatus));
    group.close();
  }
  std::vector<int> statuses;
  for (auto& other : others) statuses.push_back(other.get());
  return statuses;
}

}  // namespace dsckpt::test
