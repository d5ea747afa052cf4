// Keeper: looks at a run again and again, and brings its complete checkpoints to a place. It
// removes from the run those that are safe there and that no rule keeps. README.md has its states.
#pragma once

#include <CLI/App.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ckpt_pack/keep/kept_place.h"
#include "ckpt_pack/keep/policy.h"
#include "ckpt_pack/keep/run_folder.h"
#include "cli/cli.h"
#include "dsckpt/pack.h"
#include "pack/plan_kept.h"

namespace dsckpt::pack {

struct KeepArguments {
  std::string run;
  std::string to;
  std::string strip;             // "weights", "resume" or ""
  std::optional<int> pack = {};  // zstd's level
  uint64_t limit_rate = 0;       // bytes a second
  Policy policy = {};
  double interval = 10;  // seconds between two looks; a save that changes within it is not finished
  bool once = false;
  bool force = false;
  std::string restore;  // a step, or a checkpoint's name
  std::string into;     // where it is restored to, instead of the run
};

// Prints an event of one checkpoint, or of all: a line, or with --json an object.
void say_event(const cli::Common& common, const std::string& text, nlohmann::json data);

class Keeper {
 public:
  // `stop`: that the process is to end. All must outlive it.
  Keeper(const CLI::App& app, const cli::Common& common, const KeepArguments& args,
         const Progress& stop);

  // Until `stop`; with KeepArguments::once a single look. Returns the exit code. Throws
  // InterruptedError, and with `once` what a look throws.
  int run();

 private:
  using Clock = std::chrono::steady_clock;
  // The facts about a checkpoint beyond its files.
  struct Known {
    RunCheckpoint seen = {};
    Clock::time_point since = {};  // that it looks like that
    bool is_verified = false;
    std::string finding = {};  // why it is not whole, as far as that was looked at
    std::optional<int64_t> step = {};
    std::string said = {};  // the last thing that was said of it
  };

  void look();
  void look_at(const RunCheckpoint& checkpoint, const std::vector<RunCheckpoint>& all);
  void forget_gone(const std::vector<RunCheckpoint>& all);
  void clear_begun(const std::vector<RunCheckpoint>& all);
  bool is_settled(const Known& known) const;
  bool is_safe(const RunCheckpoint& checkpoint) const;
  bool is_part_of_safe(const RunCheckpoint& checkpoint) const;
  void verify_it(Known& known);
  void bring(Known& known);
  Job plan(const Known& known, Progress& progress) const;
  // `goes_on`: a run before has begun there.
  void run_job(const Known& known, const std::string& folder, bool goes_on, const Job& job,
               Progress& progress);
  void remove_by_policy(const std::vector<RunCheckpoint>& all);
  void remove_one(const RunCheckpoint& checkpoint);
  void say_once(Known& known, const char* event, const std::string& why);
  void say_waiting(const Error& error);
  void wait() const;
  void stop_if_asked() const;
  std::string how() const;

  const CLI::App& app_;
  const cli::Common& common_;
  const KeepArguments& args_;
  const Progress& stop_;
  const RunFolder run_;
  KeptPlace place_;
  std::map<std::string, Known> known_ = {};
  std::string waiting_for_ = {};
  // The result of a look.
  uint64_t kept_ = 0;
  uint64_t removed_ = 0;
  uint64_t waiting_ = 0;
  uint64_t refused_ = 0;
  std::optional<Error> failure_ = {};
};

// Brings a checkpoint back. Returns the exit code.
int restore(const CLI::App& app, const cli::Common& common, const KeepArguments& args,
            Progress& progress);

}  // namespace dsckpt::pack
