// What the ranks of a group say to each other during a run (group/group.h), and how it is written.
//
// Rank 0 has the plan. It tells the others where inputs and outputs are (`job`), and gives them
// tasks as they `want` them: portions of the plan, or something to read and look at. Of each
// they say what came of it (`done`). When no task is left they say so (`left`). A rank that fails
// says why (`failed`), and rank 0 has all stop.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsckpt/error.h"
#include "exec/output_sums.h"
#include "exec/portion.h"
#include "exec/staged_files.h"
#include "io/input_file.h"

namespace dsckpt {

enum class Word : uint32_t {
  // From rank 0.
  job = 1,  // RankJob
  task,     // what RankJob::tasks says
  no_task,  // in place of one: all are taken
  stop,     // what you are at; the answer is `stopped`
  end,      // number: the exit status; nothing comes after it
  look,     // at folders; the answer is `seen` (node_files.h)
  serve,    // your files; the answer is `serving`
  servers,  // where all of them are
  // From the others.
  want,      // a task
  done,      // what came of one
  left,      // nothing is under way any more, and all files are closed
  progress,  // number: bytes done since the job began
  failed,    // an error
  stopped,
  seen,
  serving,
};

// What the tasks of a job are.
enum class Tasks : uint8_t {
  portions,     // Portion; what comes of one is a PortionResult
  extent_sums,  // extent_sums.h
  read_back,    // read_back.h
  questions,    // which the Answer that follow() was given knows
};

// What a rank must know of a run besides its tasks.
struct RankJob {
  // An input as rank 0 sees it: `path` as it was opened, absolute.
  struct Input {
    std::string path = {};
    std::string display = {};
    uint64_t stored_size = 0;
    int64_t modified = 0;
    // Where nodes have files of their own (node_files.h): the rank that has it, and what it is
    // stored in there. -1: all see it at `path`.
    int owner = -1;
    std::string path_there = {};
  };
  std::vector<Input> inputs = {};
  Tasks tasks = Tasks::portions;
  // Of portions; of what is read back `options.limit_rate`.
  StagingPlace place = {};
  PortionOptions options = {};
  // Wait after each portion until it is on the disk, or after the last one.
  bool sync_portions = false;
  bool sync_last = false;

  // All of them, after those that are there, in their order.
  void add_inputs(const InputFiles& files);

  std::string encode() const;
  static RankJob decode(std::string_view bytes);
};

// Of `bytes_per_second` by all ranks; 0: no limit.
uint64_t rate_of_rank(uint64_t bytes_per_second, int ranks);

std::string encode_number(uint64_t number);
uint64_t decode_number(std::string_view bytes);

// Any exception, as the error that another process is to report; not an Error is a bug, and stays
// one.
std::string encode_failure(const std::exception& failure);
// Throws it there, with `who` in front, unless that is empty.
[[noreturn]] void throw_failure(std::string_view bytes, const std::string& who);
// Whether it is the failure of that rank, rather than what any rank would have found in the files.
bool is_of_rank(std::string_view failure);

}  // namespace dsckpt
