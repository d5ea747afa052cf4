// What the ranks of a group say to each other during a run (group/group.h), and how it is written.
//
// Rank 0 has the plan. It tells the others where inputs and outputs are (`job`), and gives them
// portions as they `want` them; of each they say what came of it (`done`). When no portion is left
// they say so (`left`). A rank that fails says why (`failed`), and rank 0 has all stop.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsckpt/error.h"
#include "exec/output_sums.h"
#include "exec/portion.h"
#include "exec/staged_files.h"

namespace dsckpt {

enum class Word : uint32_t {
  // From rank 0.
  job = 1,     // RankJob
  portion,     // Portion
  no_portion,  // in place of one: all are taken
  stop,        // what you are at; the answer is `stopped`
  end,         // number: the exit status; nothing comes after it
  // From the others.
  want,      // a portion
  done,      // PortionResult
  left,      // nothing is under way any more, and all files are closed
  progress,  // number: bytes done since the job began
  failed,    // an error
  stopped,
};

// What a rank must know of a run besides its portions.
struct RankJob {
  // An input as rank 0 sees it: `path` as it was opened, absolute.
  struct Input {
    std::string path = {};
    std::string display = {};
    uint64_t stored_size = 0;
    int64_t modified = 0;
  };
  std::vector<Input> inputs = {};
  StagingPlace place = {};
  PortionOptions options = {};
  // Wait after each portion until it is on the disk, or after the last one.
  bool sync_portions = false;
  bool sync_last = false;

  std::string encode() const;
  static RankJob decode(std::string_view bytes);
};

std::string encode_number(uint64_t number);
uint64_t decode_number(std::string_view bytes);

// Any exception, as the error that another process is to report; not an Error is a bug, and stays
// one.
std::string encode_failure(const std::exception& failure);
// Throws it there, with `who` in front.
[[noreturn]] void throw_failure(std::string_view bytes, const std::string& who);

}  // namespace dsckpt
