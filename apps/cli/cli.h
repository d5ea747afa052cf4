// What all tools share: arguments as DeepSpeed's users write them, messages, exit codes, signals,
// progress. The only place that prints errors or decides how the process ends.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "cli/help.h"
#include "exec/executor.h"
#include "weights/plan_weights.h"

namespace dsckpt::cli {

// 0 done, 1 a check answered no, 2 usage, 3 bad checkpoint, 4 I/O, 70 our bug, 130 interrupted.
enum ExitCode : int {
  kDone = 0,
  kCheckFailed = 1,
  kUsage = 2,
  kBadCheckpoint = 3,
  kIo = 4,
  kBug = 70,
  kInterrupted = 130,
};

enum class ProgressMode { automatic, always, never, json };

// Options that every tool has.
struct Common {
  bool json = false;
  bool quiet = false;
  unsigned threads = 0;
  ProgressMode progress = ProgressMode::automatic;
};

// Adds --json, --quiet, --color and --help to a tool or a subcommand, and to a tool also --version
// and the hidden --generate bash|zsh|fish|man, which prints a shell's completion or the man page.
// What is added before them comes before them in --help.
void add_common(CLI::App& app, Common& common);
// Adds --root.
void add_roots(CLI::App& app, std::vector<std::filesystem::path>& roots);
// Adds --tp-rule.
void add_tp_rules(CLI::App& app, std::vector<TpRule>& rules);
// Adds the positional `name`, a checkpoint folder, --tag and --root.
void add_checkpoint_options(CLI::App& app, const std::string& name, std::string& path,
                            OpenOptions& open);
// Whether a tool that wants a checkpoint was given weights instead: a folder that holds nothing
// else, or a file with a name as weights have it; shards are none.
bool is_weights_input(const std::string& path, const std::string& tag);
// For tools that take weights where a checkpoint is expected. Adds --strip-prefix and --add-prefix.
void add_weights_options(CLI::App& app, WeightNames& names);
// Throws UsageError if they, or `like`, were given for what is no weights.
void check_weights_options(bool is_weights, const WeightNames& names, const std::string& like = {});
// For commands that read tensors. Adds --threads and --progress.
void add_pass_options(CLI::App& app, Common& common);
// For whatever writes. Adds --dry-run, --force, which is explained by `force`, --fsync and --io.
void add_output_options(CLI::App& app, RunOptions& run, bool& dry_run, const std::string& force);
// Adds a flag that takes a level, for packed output.
void add_pack_flag(CLI::App& app, const std::string& name, RunOptions& run,
                   const std::string& text);
// For tools that run a plan of their own making. Adds these, --verify, --zstd and what
// add_pass_options adds.
void add_run_options(CLI::App& app, Common& common, RunOptions& run, bool& dry_run,
                     const std::string& force);

// A subcommand that was added to a tool.
struct Command {
  CLI::App* app;
  std::function<int()> run;  // the exit code
};
// Adds a subcommand, with its options, to `app`. What it keeps lives as long as the Command.
using AddCommand = Command(CLI::App& app, Common& common);

// Parses `argv` into `app` and runs `body`, whose result is the exit code. Python's argparse
// spellings are understood (spelling.h). Errors become a message on stderr (and a JSON object on
// stdout with --json) and an exit code. Without arguments, a tool of subcommands shows its help on
// stderr.
int run(CLI::App& app, const Common& common, int argc, char** argv,
        const std::function<int()>& body);

// Prints `json` as one line {"schema": 1, "type": type, "data": ...} on stdout.
void print_json(const std::string& type, nlohmann::json data);
// "TOOL: note: text" on stderr, unless --quiet.
void note(const CLI::App& app, const Common& common, const std::string& text);

// SIGHUP, SIGINT and SIGTERM set `progress.cancelled` while this lives; a second signal kills.
class InterruptGuard {
 public:
  explicit InterruptGuard(Progress& progress);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
};

// Shows a Progress on stderr, at most six times a second, until it is destroyed: a line with bar,
// rate and time left, no wider than the terminal, on one (or with --progress=always), JSON lines
// with --progress=json.
class ProgressDisplay {
 public:
  ProgressDisplay(const Progress& progress, const Common& common);
  ~ProgressDisplay();
  ProgressDisplay(const ProgressDisplay&) = delete;
  ProgressDisplay& operator=(const ProgressDisplay&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsckpt::cli
