// Ranks of a meeting that are threads of the test.
#pragma once

#include <functional>
#include <future>
#include <string>
#include <vector>

#include "exec/follower.h"
#include "exec/meeting.h"
#include "support/temp_file.h"

namespace dsckpt::test {

// The exit status that run_ranks() ends the others with.
inline constexpr int kEndStatus = 5;
inline const MeetingOptions kMeeting{.program = "dsckpt 1"};

// Calls `lead` as rank 0 of a meeting whose other ranks follow, and ends them. Returns their
// statuses; of one that `interrupted` has stopped, -1.
inline std::vector<int> run_ranks(int ranks, const AnswerTask& answer,
                                  const std::function<void(Meeting&)>& lead,
                                  const std::atomic<bool>& interrupted = false) {
  const TempFolder folder;
  const Environment environment = [path = folder.path().string()](const char* name) {
    return name == std::string("DSCKPT_GROUP_DIR") ? path.c_str() : nullptr;
  };
  std::vector<std::future<int>> others;
  for (int rank = 1; rank < ranks; ++rank) {
    others.push_back(std::async(std::launch::async, [=, &answer, &interrupted] {
      try {
        Attendance attendance({"test", rank, ranks, "1"}, kMeeting, environment, interrupted);
        return follow(attendance, rank, kMeeting, 2, answer);
      } catch (const InterruptedError&) {
        return -1;
      }
    }));
  }
  {
    Meeting meeting({"test", 0, ranks, "1"}, kMeeting, environment);
    lead(meeting);
    meeting.end(kEndStatus);
  }
  std::vector<int> statuses;
  for (auto& other : others) statuses.push_back(other.get());
  return statuses;
}

}  // namespace dsckpt::test
