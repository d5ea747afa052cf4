// The messages between ranks of a group during a run (group/group.h), and their encoding.
//
// Rank 0 has the plan. It sends the places of inputs and outputs (`job`), and then a task each time
// a rank `want`s one: a portion of the plan, or files to read and examine. The rank sends the
// result of each task (`done`). When no task is left, it reports that (`left`). A rank that fails
// sends the reason (`failed`), and rank 0 stops all ranks.
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

// The kind of tasks in a job.
enum class Tasks : uint8_t {
  portions,     // Portion; what comes of one is a PortionResult
  extent_sums,  // extent_sums.h
  read_back,    // read_back.h
  questions,    // which the Answer that follow() was given knows
};

// The facts of a run that a rank needs besides its tasks.
struct RankJob {
  // An input as rank 0 sees it: `path` as it was opened, absolute.
  struct Input {
    std::string path = {};
    std::string display = {};
    uint64_t stored_size = 0;
    int64_t modified = 0;
    // If nodes have files of their own (node_files.h): the rank that has the file, and its stored
    // path there. The rank is -1 if all ranks see the file at `path`.
    int owner = -1;
    std::string path_there = {};
  };
  std::vector<Input> inputs = {};
  Tasks tasks = Tasks::portions;
  // For portions. Read-back jobs use `options.limit_rate`.
  StagingPlace place = {};
  PortionOptions options = {};
  // Sync to disk after each portion, or after the last one.
  bool sync_portions = false;
  bool sync_last = false;

  // Appends all files, in their order.
  void add_inputs(const InputFiles& files);

  std::string encode() const;
  static RankJob decode(std::string_view bytes);
};

// A rank's part of `bytes_per_second` for all ranks; 0: no limit.
uint64_t rate_of_rank(uint64_t bytes_per_second, int ranks);

std::string encode_number(uint64_t number);
uint64_t decode_number(std::string_view bytes);

// Encodes any exception as an error for another process to report. An exception that is no Error is
// a bug, and stays one.
std::string encode_failure(const std::exception& failure);
// Throws it there, with `who` in front, unless `who` is empty.
[[noreturn]] void throw_failure(std::string_view bytes, const std::string& who);
// True for a failure of that rank; false for one that any rank would find in the files.
bool is_of_rank(std::string_view failure);

}  // namespace dsckpt
