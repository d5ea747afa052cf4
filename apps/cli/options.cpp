#include "cli/options.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <tbb/version.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <iostream>
#include <map>

#include "base/text.h"
#include "cli/command_facts.h"
#include "cli/completions.h"
#include "cli/far_paths.h"
#include "cli/help.h"
#include "cli/man_page.h"
#include "cli/option_facts.h"
#include "cli/ranks.h"
#include "cli/steps.h"
#include "cli/terminal.h"
#include "cli/version.h"
#include "codec/frame.h"
#include "dsckpt/error.h"

namespace dsckpt::cli {
namespace {

std::string version_text(const std::string& tool) {
  return tool + " " + kVersion + " (" + kCommit + ", oneTBB " + std::string(TBB_VERSION_STRING) +
         " headers, interface " + std::to_string(TBB_runtime_interface_version()) +
         " at run time)\nfeatures: " + kFeatures;
}

// Handles --generate: prints the text and ends parsing.
void generate(const CLI::App& app, const std::string& what) {
  const CommandFacts facts = facts_of(app);
  std::cout << (what == "bash"   ? bash_completion(facts)
                : what == "zsh"  ? zsh_completion(facts)
                : what == "fish" ? fish_completion(facts)
                : what == "json" ? facts_json(facts)
                                 : man_page(facts, kVersion));
  throw CLI::Success();
}

constexpr int kMostRanks = 65536;

enum class IoClass { none, idle };

// Sets the class of this thread and of all threads that it starts: ioprio_set(2), which has no
// wrapper.
void set_io_class(IoClass io_class) {
  constexpr int kWhoProcess = 1;  // IOPRIO_WHO_PROCESS
  constexpr int kIdle = 3 << 13;  // IOPRIO_CLASS_IDLE
  if (io_class == IoClass::none || ::syscall(SYS_ioprio_set, kWhoProcess, 0, kIdle) == 0) return;
  throw IoError({}, "cannot become idle at the disk", errno);
}

// Limits memory, so that larger allocations throw std::bad_alloc: setrlimit(2).
void limit_memory(uint64_t bytes) {
  rlimit limit{};
  ::getrlimit(RLIMIT_DATA, &limit);
  limit.rlim_cur = std::min<rlim_t>(bytes, limit.rlim_max);
  if (::setrlimit(RLIMIT_DATA, &limit) != 0) throw IoError({}, "cannot limit memory", errno);
}

// An option for one of a few words. `take` gets the word's meaning. The first word is the default.
template <typename T>
CLI::Option* add_choice(CLI::App& app, const std::string& name, const std::string& metavar,
                        const std::vector<std::pair<std::string, T>>& meanings,
                        const std::function<void(T)>& take, const std::string& text) {
  std::vector<std::string> words;
  for (const auto& [word, meaning] : meanings) words.push_back(word);
  const auto take_meaning = [meanings = std::map(meanings.begin(), meanings.end()),
                             take](const std::string& word) { take(meanings.at(word)); };
  return one_of(app.add_option_function<std::string>(name, take_meaning, text), words)
      ->type_name(metavar)
      ->default_str(words.front());
}

CLI::Option* add_rate(CLI::App& app, const std::string& name, uint64_t& rate,
                      const std::string& text) {
  return app
      .add_option_function<std::string>(
          name, [&rate](const std::string& given) { rate = parse_size(given, "rate"); }, text)
      ->type_name("RATE");
}

void add_forecast_options(CLI::App& app, RunArguments& run) {
  in_range(app.add_option("--ranks", run.ranks,
                          "With --dry-run: also show the work of each of N ranks (mpirun -n N)"),
           1, kMostRanks)
      ->type_name("N");
  add_rate(app, "--disk-rate", run.disk_rate,
           "With --ranks: also show the time if each reads and writes so many bytes a second");
  app.parse_complete_callback([&run] {
    if (run.ranks == 0 && run.disk_rate != 0) {
      throw UsageError("--disk-rate goes with --dry-run --ranks N")
          .with_hint("to write more slowly: --limit-rate RATE");
    }
    if (run.ranks != 0 && !run.dry_run) {
      throw UsageError("--ranks goes with --dry-run")
          .with_hint("to run on several ranks, start the tool with mpirun -n " +
                     std::to_string(run.ranks) + ", srun or torchrun");
    }
  });
}

// Parses "auto", "8", "8,16MiB" or "all,16MiB".
Striping parse_striping(const std::string& text) {
  constexpr int kMostOsts = 2000;
  constexpr uint64_t kSmallest = 64 << 10;
  constexpr uint64_t kLargest = uint64_t{2} << 30;
  Striping striping;
  if (text == "auto") return striping;
  const size_t comma = text.find(',');
  const std::string count = text.substr(0, comma);
  if (count != "all") {
    const auto [end, failed] =
        std::from_chars(count.data(), count.data() + count.size(), striping.count);
    if (failed != std::errc() || end != count.data() + count.size() || striping.count < 1 ||
        striping.count > kMostOsts) {
      throw UsageError("--stripe " + text + ": '" + count + "' is not a number of OSTs, 1 to " +
                       std::to_string(kMostOsts))
          .with_hint("--stripe auto, --stripe 8, --stripe 8,16MiB or --stripe all,16MiB");
    }
  }
  if (comma == text.npos) return striping;
  striping.bytes = parse_size(text.substr(comma + 1), "stripe size");
  if (!std::has_single_bit(striping.bytes) || striping.bytes < kSmallest ||
      striping.bytes > kLargest) {
    throw UsageError("--stripe " + text + ": stripes are 64 KiB to 2 GiB long, in powers of two")
        .with_hint("4MiB is such a size, 4MB is not");
  }
  return striping;
}

}  // namespace

void add_common(CLI::App& app, Common& common, bool reads) {
  if (reads) add_far_options(app);
  app.add_flag("--json", common.json, "Results as JSON on stdout")->group(kCommonGroup);
  app.add_flag("-q,--quiet", common.quiet, "No notes, no summary")->group(kCommonGroup);
  add_choice<ColourMode>(app, "--color", "WHEN",
                         {{"auto", ColourMode::automatic},
                          {"always", ColourMode::always},
                          {"never", ColourMode::never}},
                         set_colour_mode,
                         "Colours: auto (on a terminal, unless NO_COLOR is set), always, or never")
      ->group(kCommonGroup);
  app.add_option_function<std::string>(
         "--max-memory",
         [&](const std::string& text) {
           common.max_memory = parse_size(text, "size");
           limit_memory(common.max_memory);
         },
         "Fail rather than take more memory: digits and KB, MB, GB or TB")
      ->type_name("SIZE")
      ->group(kCommonGroup);
  if (app.get_parent() == nullptr) {
    app.set_version_flag("--version", version_text(app.get_name()), "Print the version")
        ->group(kCommonGroup);
    one_of(app.add_option_function<std::string>(
               "--generate", [&app](const std::string& what) { generate(app, what); },
               "Print the completion for bash, zsh or fish, the man page, or the options as JSON"),
           {"bash", "zsh", "fish", "man", "json"})
        ->type_name("WHAT")
        ->group(kCommonGroup);
    const size_t width = Terminal::of_stdout().width;
    app.formatter(help_formatter(std::clamp<size_t>(width, 60, 100)));
  }
  app.set_help_flag("-h,--help", "Show this help")->group(kCommonGroup);
}

void add_checkpoint_options(CLI::App& app, const std::string& name, std::string& path,
                            SourceOptions& source) {
  input_path(app.add_option(name, path, "Folder with `latest` (or --tag), or a tag's own folder"))
      ->required();
  app.add_option("-t,--tag", source.tag,
                 "Tag to read (default: the one in `latest`);\n"
                 "all: every tag, each into a folder of its name")
      ->type_name("TAG");
  add_tp_rules(app, source.tp_rules);
  add_param_names(app, source.param_names);
  add_model(app, source.model);
  add_roots(app, source.roots);
}

void add_tp_rules(CLI::App& app, std::vector<std::string>& rules) {
  app.add_option("--tp-rule", rules,
                 "How to merge tensor-parallel slices if the checkpoint has no rule:\n"
                 "REGEX=cat:0, cat:1, replicated, average or sum")
      ->type_name("RULE")
      ->allow_extra_args(false);
}

void add_param_names(CLI::App& app, std::filesystem::path& names) {
  input_path(
      app.add_option("--param-names", names,
                     "File with the names of model.named_parameters(), one per line, for an\n"
                     "optimizer of another framework that numbers its parameters"))
      ->type_name("FILE");
}

void add_key_map(CLI::App& app, std::filesystem::path& rules) {
  some_path(app.add_option("--key-map", rules,
                           "Rename, cut and join tensors by the rules in this file, lines of\n"
                           "'REGEX => REPLACEMENT', with their optimizer states"))
      ->type_name("FILE");
}

void add_model(CLI::App& app, std::string& model) {
  app.add_option("--model", model,
                 "Model to read, if several were saved, such as an actor and its critic")
      ->type_name("NAME");
}

void add_roots(CLI::App& app, std::vector<std::filesystem::path>& roots) {
  input_path(
      app.add_option("--root", roots,
                     "Another folder with files of the same tag, such as another node's own disk;\n"
                     "may be repeated"))
      ->type_name("DIR")
      ->allow_extra_args(false);
}

void add_weights_options(CLI::App& app, SourceOptions& source) {
  app.add_option("--strip-prefix", source.strip_prefix,
                 "For weights: remove this from the front of names that have it")
      ->type_name("PREFIX");
  app.add_option("--add-prefix", source.add_prefix, "For weights: put this in front of all names")
      ->type_name("PREFIX");
}

void add_set_change(CLI::App& app, SetChange& change) {
  const auto patterns = [&](const char* name, std::vector<std::string>& list, const char* text) {
    return app.add_option(name, list, text)->type_name("REGEX")->allow_extra_args(false);
  };
  patterns("--unfreeze", change.unfreeze,
           "Frozen parameters that the new run trains, with states that begin empty");
  patterns("--freeze", change.freeze, "Trained parameters that the new run does not train");
  patterns("--drop", change.drop, "Parameters and buffers that the new run does not have");
  input_path(app.add_option("--add", change.add,
                            "New parameters that the new run trains, such as adapters or a head:\n"
                            "a Hugging Face folder, a .safetensors or .bin file"))
      ->type_name("WEIGHTS");
  CLI::Option* resize =
      count_from_one(app.add_option("--resize-vocab", change.vocab_rows,
                                    "Tokens of the new run: embeddings and heads get so many rows"))
          ->type_name("N");
  patterns("--vocab", change.vocab,
           "Parameters with a row for each token; default: those with the usual names")
      ->needs(resize);
  app.add_option("--new-rows", change.new_rows,
                 "Rows of new tokens: mean of all old ones, zero, or taken from weights")
      ->type_name("mean|zero|WEIGHTS")
      ->default_str("mean")
      ->needs(resize);
}

void add_follow_links(CLI::App& app, bool& follow_links) {
  app.add_flag("--follow-links", follow_links,
               "Copy also the targets of links that leave the input");
}

void become_idle_at_disk() {
  set_io_class(IoClass::idle);
}

void add_pass_options(CLI::App& app, Common& common) {
  in_range(
      app.add_option("--threads", common.threads,
                     "Threads to use (default: one per core, and more if that keeps a disk busy)"),
      1, 4096)
      ->type_name("N");
  add_choice<IoClass>(
      app, "--io-class", "CLASS", {{"none", IoClass::none}, {"idle", IoClass::idle}}, set_io_class,
      "Priority at the disk: none (unchanged), or idle (after all other processes)");
  add_choice<ProgressMode>(
      app, "--progress", "WHEN",
      {{"auto", ProgressMode::automatic},
       {"always", ProgressMode::always},
       {"never", ProgressMode::never},
       {"json", ProgressMode::json}},
      [&](ProgressMode mode) { common.progress = mode; },
      "auto (if stderr is a terminal), always, never, or json");
}

void add_output_options(CLI::App& app, Common& common, RunArguments& run,
                        const std::string& force) {
  app.add_flag("--dry-run", run.dry_run, "Show what would be written; write nothing");
  add_forecast_options(app, run);
  app.add_flag("--force", run.options.force, force);
  app.add_flag("--fsync", run.options.durable,
               "Wait until the data is on the disk before it gets its final name");
  add_choice<IoMode>(
      app, "--io", "MODE",
      {{"auto", IoMode::automatic}, {"buffered", IoMode::buffered}, {"direct", IoMode::direct}},
      [&](IoMode mode) { run.options.io = mode; },
      "buffered (through the page cache), direct (past it), or auto (direct where the output is "
      "more than the page cache takes at once)");
  app.add_flag("--verify-output", run.options.verify_output,
               "Read everything back from the disk before it gets its final name, and compare");
  add_rate(app, "--limit-rate", run.options.limit_rate,
           "Write at most so many bytes a second: digits and KB, MB, GB or TB");
  app.add_option_function<std::string>(
         "--stripe", [&](const std::string& text) { run.options.stripe = parse_striping(text); },
         "On Lustre: stripe the output over COUNT OSTs, or all, in stripes of SIZE (lfs\n"
         "setstripe); auto: all, in stripes of 4MiB")
      ->type_name("COUNT[,SIZE]");
  CLI::Option* resume =
      app.add_flag("--resume", run.options.resume,
                   "Keep the progress if the run stops, and continue from earlier progress");
  in_range(app.add_option_function<int64_t>(
                  "--save-every",
                  [&](int64_t seconds) { run.options.save_every = std::chrono::seconds(seconds); },
                  "With --resume: sync progress to disk every SECONDS (default: 10)")
               ->needs(resume),
           0, 24 * 3600)
      ->type_name("SECONDS");
  add_step_options(app, common, run.steps);
}

void add_pack_flag(CLI::App& app, const std::string& name, RunArguments& run,
                   const std::string& text) {
  in_range(app.add_flag_function(
               name + "{" + std::to_string(kDefaultPackLevel) + "}",
               [&](int64_t level) { run.options.pack = static_cast<int>(level); }, text),
           kLowestPackLevel, kHighestPackLevel);
}

void add_run_options(CLI::App& app, Common& common, RunArguments& run, const std::string& force,
                     bool packs) {
  add_output_options(app, common, run, force);
  app.add_flag("--verify", run.options.verify,
               "Check the CRC32 of every record of the checkpoint, also those not needed");
  if (packs) {
    add_pack_flag(
        app, "--zstd", run,
        "Write packed files, NAME.dspack, which all tools here read and ckpt-pack unpacks;\n"
        "--zstd=LEVEL, 1 to 19, compresses repetitive data harder");
  }
  add_pass_options(app, common);
  add_rank_options(app, common);
}

}  // namespace dsckpt::cli
