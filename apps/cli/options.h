// Options that several tools have, and what they set.
#pragma once

#include <CLI/App.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dsckpt/checkpoint.h"
#include "dsckpt/run.h"
#include "exec/share_forecast.h"
#include "exec/step_work.h"
#include "group/join.h"

namespace dsckpt::cli {

enum class ProgressMode { automatic, always, never, json };

// Options that every tool has, and the group that --help shows them in.
inline constexpr const char* kCommonGroup = "Common options";
struct Common {
  bool json = false;
  bool quiet = false;
  unsigned threads = 0;
  uint64_t max_memory = 0;  // bytes; 0: what there is
  ProgressMode progress = ProgressMode::automatic;
  GroupOptions group_options = {};
  std::shared_ptr<Group> group = {};  // of which this is rank 0; nullptr: alone (in_group())
};

// Adds --json, --quiet, --color, --max-memory and --help, and unless it `reads` nothing
// --s3-endpoint and its like, to a tool or a subcommand, and to a tool also --version and the
// hidden --generate bash|zsh|fish|man, which prints a shell's completion or the man page. What is
// added before them comes before them in --help.
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
// For tools that take weights where a checkpoint is expected. Adds --strip-prefix and --add-prefix.
void add_weights_options(CLI::App& app, SourceOptions& source);
// For commands that copy files. Adds --follow-links.
void add_follow_links(CLI::App& app, bool& follow_links);
// What --io-class idle does. Throws IoError.
void become_idle_at_disk();
// For commands that read tensors. Adds --threads, --io-class and --progress.
void add_pass_options(CLI::App& app, Common& common);

// Which step of a conversion is meant, if not all of it (steps.h).
struct StepArguments {
  bool plans = false;                   // the first
  uint64_t portions = 0;                // about so many; 0: as many as suit
  bool commits = false;                 // the last
  std::optional<StepShare> share = {};  // what one of several processes does, all steps of them

  bool any() const { return plans || commits || share; }
};

// How the output is written, and whether at all.
struct RunArguments {
  RunOptions options;
  bool dry_run = false;
  int ranks = 0;  // that a dry run tells the shares of; 0: tells none
  StatedRates rates = {};
  StepArguments steps = {};
};
// For what runs a job, also in a group. Adds --dry-run, --ranks, --disk-rate and --network-rate,
// --force, which is explained by `force`, --fsync, --io, --verify-output, --limit-rate,
// --stripe, --resume, --save-every, --emit-plan, --portions and --share.
void add_output_options(CLI::App& app, Common& common, RunArguments& run, const std::string& force);
// Adds a flag that takes a level, for packed output.
void add_pack_flag(CLI::App& app, const std::string& name, RunArguments& run,
                   const std::string& text);
// For tools that run a plan of their own making. Adds these, --verify, --zstd if `packs` (some of
// what they write can be), and what add_pass_options and add_group_options add.
void add_run_options(CLI::App& app, Common& common, RunArguments& run, const std::string& force,
                     bool packs = true);

}  // namespace dsckpt::cli
