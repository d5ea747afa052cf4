// Options that several tools have, and their values.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dsckpt/checkpoint.h"
#include "dsckpt/run.h"
#include "exec/meeting.h"
#include "exec/reading.h"
#include "exec/share_forecast.h"
#include "exec/step_work.h"

namespace dsckpt::cli {

enum class ProgressMode { automatic, always, never, json };

// The step of a command that only reads (steps.h): all of it, or the first or the last. The first
// prints nothing.
enum class ReadingStep : uint8_t { all, plan, commit };

// Options that every tool has, and the group that --help shows them in.
inline constexpr const char* kCommonGroup = "Common options";
struct Common {
  bool json = false;
  bool quiet = false;
  unsigned threads = 0;
  uint64_t max_memory = 0;  // bytes; 0: what there is
  ProgressMode progress = ProgressMode::automatic;
  MeetingOptions meeting = {};
  std::shared_ptr<Meeting> ranks = {};  // of which this is rank 0; nullptr: alone (with_ranks())
  // For command_of_readers(): who reads, and which step it is.
  std::shared_ptr<Readers> readers = {};
  ReadingStep step = ReadingStep::all;
  // --share names one that another process plans for. Then the input is ignored.
  bool is_later_share = false;
};

// Adds --json, --quiet, --color, --max-memory and --help to a tool or a subcommand. Unless it
// `reads` nothing, adds --s3-endpoint and related options. A tool also gets --version, and the
// hidden --generate bash|zsh|fish|man, which prints a shell's completion or the man page. Options
// added earlier come first in --help.
void add_common(CLI::App& app, Common& common, bool reads = true);
// Adds --model.
void add_model(CLI::App& app, std::string& model);
// Adds --root.
void add_roots(CLI::App& app, std::vector<std::filesystem::path>& roots);
// Adds --tp-rule.
void add_tp_rules(CLI::App& app, std::vector<std::string>& rules);
// Adds --key-map.
void add_key_map(CLI::App& app, std::filesystem::path& rules);
// Adds --param-names.
void add_param_names(CLI::App& app, std::filesystem::path& names);
// Adds the positional `name`, a checkpoint folder, --tag and --root.
void add_checkpoint_options(CLI::App& app, const std::string& name, std::string& path,
                            SourceOptions& source);
// For tools that accept weights in place of a checkpoint: adds --strip-prefix and --add-prefix.
void add_weights_options(CLI::App& app, SourceOptions& source);
// Adds the options of another set of parameters: --unfreeze, --freeze, --add, --drop,
// --resize-vocab.
void add_set_change(CLI::App& app, SetChange& change);
// For commands that copy files: adds --follow-links.
void add_follow_links(CLI::App& app, bool& follow_links);
// Sets the I/O class of --io-class idle. Throws IoError.
void become_idle_at_disk();
// For commands that read tensors: adds --threads, --io-class and --progress.
void add_pass_options(CLI::App& app, Common& common);

// The step of a conversion to do, if not all of it (steps.h).
struct StepArguments {
  bool plans = false;                   // the first
  uint64_t portions = 0;                // about so many; 0: as many as suit
  std::string planned_in = {};          // the plan's folder, only if the output is in a store
  bool commits = false;                 // the last
  std::optional<StepShare> share = {};  // what one of several processes does, all steps of them

  bool any() const { return plans || commits || share; }
};

// Options for writing the output, or for a dry run.
struct RunArguments {
  RunOptions options;
  bool dry_run = false;
  int ranks = 0;           // that a dry run tells the shares of; 0: tells none
  uint64_t disk_rate = 0;  // ShareForecast's
  StepArguments steps = {};
};
// For commands that run a job, also on several ranks: adds --dry-run, --ranks, --disk-rate,
// --force, --fsync, --io, --verify-output, --limit-rate, --stripe. Adds --resume,
// --save-every, --emit-plan, --portions, --plan-in and --share. The help of --force is `force`.
void add_output_options(CLI::App& app, Common& common, RunArguments& run, const std::string& force);
// Adds a flag that takes a level, for packed output.
void add_pack_flag(CLI::App& app, const std::string& name, RunArguments& run,
                   const std::string& text);
// For tools that run their own plan: adds the options above, and those of add_pass_options and
// add_rank_options. Adds --verify, and --zstd if `packs`: some of the output can be packed.
void add_run_options(CLI::App& app, Common& common, RunArguments& run, const std::string& force,
                     bool packs = true);

}  // namespace dsckpt::cli
