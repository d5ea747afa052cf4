#include "cli/cli.h"

#include <poll.h>
#include <sys/resource.h>
#include <tbb/version.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <map>
#include <new>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/command_facts.h"
#include "cli/completions.h"
#include "cli/help.h"
#include "cli/man_page.h"
#include "cli/spelling.h"
#include "cli/terminal.h"
#include "cli/version.h"
#include "codec/frame.h"
#include "deepspeed/shard_name.h"
#include "inspect/contents.h"
#include "report/report.h"

namespace dsckpt::cli {
namespace {

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
      return kUsage;
    case ErrorKind::corrupt:
    case ErrorKind::inconsistent:
    case ErrorKind::unsupported:
      return kBadCheckpoint;
    case ErrorKind::io:
      return kIo;
    case ErrorKind::interrupted:
      return kInterrupted;
  }
  return kBug;
}

// Shards are opened by the hundred.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::string version_text(const std::string& tool) {
  return tool + " " + kVersion + " (" + kCommit + ", oneTBB " + std::string(TBB_VERSION_STRING) +
         " headers, interface " + std::to_string(TBB_runtime_interface_version()) + " at run time)";
}

std::atomic<std::atomic<bool>*> cancel_flag{nullptr};

extern "C" void on_signal(int) {
  if (std::atomic<bool>* flag = cancel_flag.load()) *flag = true;
}

constexpr std::array kSignals{SIGHUP, SIGINT, SIGTERM};

// A reader who has seen enough closes the pipe, and that is no error; results lost otherwise are.
void flush_stdout() {
  errno = 0;
  std::cout.flush();
  if (std::cout) return;
  const int failed = errno;
  pollfd reader{STDOUT_FILENO, POLLOUT, 0};
  if (::poll(&reader, 1, 0) == 1 && (reader.revents & (POLLERR | POLLHUP)) != 0) return;
  throw IoError({}, "cannot write to standard output", failed);
}

// --generate: prints, and ends the parsing.
void generate(const CLI::App& app, const std::string& what) {
  const CommandFacts facts = facts_of(app);
  std::cout << (what == "bash"   ? bash_completion(facts)
                : what == "zsh"  ? zsh_completion(facts)
                : what == "fish" ? fish_completion(facts)
                                 : man_page(facts, kVersion));
  throw CLI::Success();
}

// Whether there is something to run: --help and the like have said what they had to say.
bool parse(CLI::App& app, const std::vector<std::string>& arguments) {
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11's order
    return true;
  } catch (const CLI::Success& success) {
    app.exit(success, std::cout, std::cerr);
    return false;
  } catch (const CLI::ParseError& error) {
    const std::string meant = did_you_mean(app, arguments);
    throw std::move(UsageError(error.what()))
        .with_hint((meant.empty() ? "" : meant + " ") + "--help lists the options");
  }
}

int report_error(const CLI::App& app, bool as_json, const Error& error) {
  if (as_json) print_json("error", error_json(error));
  const Terminal terminal = Terminal::of_stderr();
  std::cerr << app.get_name() << ": " << styled(terminal, Style::bad, "error:") << " "
            << printable(error.what(), Newlines::keep) << "\n";
  if (!error.hint().empty()) {
    std::cerr << styled(terminal, Style::bold, "hint:") << " " << printable(error.hint()) << "\n";
  }
  return exit_code(error.kind());
}

// An option for one of a few words; `take` gets what the word means. The first is the default.
template <typename T>
CLI::Option* add_choice(CLI::App& app, const std::string& name, const std::string& metavar,
                        const std::vector<std::pair<std::string, T>>& meanings,
                        const std::function<void(T)>& take, const std::string& text) {
  std::vector<std::string> words;
  for (const auto& [word, meaning] : meanings) words.push_back(word);
  const auto take_meaning = [meanings = std::map(meanings.begin(), meanings.end()),
                             take](const std::string& word) { take(meanings.at(word)); };
  return app.add_option_function<std::string>(name, take_meaning, text)
      ->check(CLI::IsMember(words))
      ->option_text(metavar + "=" + words.front());
}

}  // namespace

void add_common(CLI::App& app, Common& common) {
  constexpr const char* kGroup = "Common options";
  app.add_flag("--json", common.json, "Results as JSON on stdout")->group(kGroup);
  app.add_flag("-q,--quiet", common.quiet, "No notes, no summary")->group(kGroup);
  add_choice<ColourMode>(app, "--color", "WHEN",
                         {{"auto", ColourMode::automatic},
                          {"always", ColourMode::always},
                          {"never", ColourMode::never}},
                         set_colour_mode,
                         "Colours: auto (on a terminal, unless NO_COLOR is set), always, or never")
      ->group(kGroup);
  if (app.get_parent() == nullptr) {
    app.set_version_flag("--version", version_text(app.get_name()), "Which version this is")
        ->group(kGroup);
    app.add_option_function<std::string>(
           "--generate", [&app](const std::string& what) { generate(app, what); },
           "Shell completion or man page on stdout")
        ->check(CLI::IsMember({"bash", "zsh", "fish", "man"}))
        ->group("");
    const size_t width = Terminal::of_stdout().width;
    app.formatter(help_formatter(std::clamp<size_t>(width, 60, 100)));
  }
  app.set_help_flag("-h,--help", "Show this help")->group(kGroup);
}

void add_checkpoint_options(CLI::App& app, const std::string& name, std::string& path,
                            OpenOptions& open) {
  app.add_option(name, path, "Folder with `latest` (or --tag), or a tag's own folder")->required();
  app.add_option("-t,--tag", open.tag, "Tag to read (default: what `latest` says)")
      ->type_name("TAG");
  add_tp_rules(app, open.tp_rules);
  add_roots(app, open.roots);
}

void add_tp_rules(CLI::App& app, std::vector<TpRule>& rules) {
  app.add_option_function<std::vector<std::string>>(
         "--tp-rule",
         [&rules](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) rules.push_back(TpRule::parse(text));
         },
         "How tensor-parallel slices go together where the checkpoint does not say it:\n"
         "REGEX=cat:0, cat:1, replicated or average")
      ->type_name("RULE")
      ->allow_extra_args(false);
}

void add_roots(CLI::App& app, std::vector<std::filesystem::path>& roots) {
  app.add_option("--root", roots,
                 "Another folder with shards of the same tag: what another node kept on its own\n"
                 "disk; once for each")
      ->type_name("DIR")
      ->allow_extra_args(false);
}

bool is_weights_input(const std::string& path, const std::string& tag) {
  const std::filesystem::path file(path);
  std::error_code failed;
  if (std::filesystem::is_regular_file(file, failed)) {
    const std::string name = content_path(file).filename().string();
    constexpr std::array kEndings{".safetensors", ".bin", ".pt", ".pth", ".index.json"};
    return !parse_shard_name(name) &&
           std::any_of(kEndings.begin(), kEndings.end(),
                       [&](const char* ending) { return name.ends_with(ending); });
  }
  return holds_only_weights(file, tag);
}

void add_weights_options(CLI::App& app, WeightNames& names) {
  app.add_option("--strip-prefix", names.strip_prefix,
                 "Of weights: take this from the front of names that have it")
      ->type_name("PREFIX");
  app.add_option("--add-prefix", names.add_prefix, "Of weights: put this in front of all names")
      ->type_name("PREFIX");
}

void check_weights_options(bool is_weights, const WeightNames& names, const std::string& like) {
  if (is_weights) return;
  const auto check = [](std::string_view option, const std::string& value) {
    if (!value.empty()) {
      throw UsageError(std::string(option) + " is for weights, and the input is a checkpoint");
    }
  };
  check("--strip-prefix", names.strip_prefix);
  check("--add-prefix", names.add_prefix);
  check("--like", like);
}

void add_pass_options(CLI::App& app, Common& common) {
  app.add_option("--threads", common.threads,
                 "Threads to use (default: one a core, and as many more as keep a disk busy)")
      ->check(CLI::Range(1, 4096))
      ->option_text("N");
  add_choice<ProgressMode>(
      app, "--progress", "WHEN",
      {{"auto", ProgressMode::automatic},
       {"always", ProgressMode::always},
       {"never", ProgressMode::never},
       {"json", ProgressMode::json}},
      [&](ProgressMode mode) { common.progress = mode; },
      "auto (if stderr is a terminal), always, never, or json");
}

void add_output_options(CLI::App& app, RunOptions& run, bool& dry_run, const std::string& force) {
  app.add_flag("--dry-run", dry_run, "Show what would be written; write nothing");
  app.add_flag("--force", run.stage.force, force);
  app.add_flag("--fsync", run.stage.durable,
               "Wait until the data is on the disk before it gets its final name");
  add_choice<IoMode>(
      app, "--io", "MODE",
      {{"auto", IoMode::automatic}, {"buffered", IoMode::buffered}, {"direct", IoMode::direct}},
      [&](IoMode mode) { run.io = mode; },
      "buffered (through the page cache), direct (past it), or auto (direct where the output is "
      "more than the page cache takes at once)");
}

void add_pack_flag(CLI::App& app, const std::string& name, RunOptions& run,
                   const std::string& text) {
  app.add_flag_function(
         name + "{" + std::to_string(kDefaultPackLevel) + "}",
         [&](int64_t level) { run.pack = static_cast<int>(level); }, text)
      ->check(CLI::Range(kLowestPackLevel, kHighestPackLevel));
}

void add_run_options(CLI::App& app, Common& common, RunOptions& run, bool& dry_run,
                     const std::string& force) {
  add_output_options(app, run, dry_run, force);
  app.add_flag("--verify", run.verify,
               "Check the CRC32 of every record of the checkpoint, also those not needed");
  add_pack_flag(
      app, "--zstd", run,
      "Write packed files, NAME.dspack, which all tools here read and ckpt-pack unpacks;\n"
      "--zstd=LEVEL, 1 to 19, compresses harder what repeats");
  add_pass_options(app, common);
}

int run(CLI::App& app, const Common& common, int argc, char** argv,
        const std::function<int()>& body) {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit is an I/O error, not a death
  raise_descriptor_limit();
  bool as_json = false;
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  if (arguments.empty() && !app.get_subcommands({}).empty()) {
    std::cerr << app.help();
    return kUsage;
  }
  try {
    arguments = canonical_arguments(app, std::move(arguments));
    // `common` is filled in only if all arguments are right.
    const auto options_end = std::find(arguments.begin(), arguments.end(), "--");
    as_json = std::find(arguments.begin(), options_end, "--json") != options_end;
    const int code = parse(app, arguments) ? body() : kDone;
    flush_stdout();
    return code;
  } catch (const UsageError& error) {
    // What should have been a subcommand may have been taken for a path.
    const bool other = !app.get_subcommands({}).empty() && app.get_subcommands().empty();
    const std::string meant = other && error.hint().empty() ? did_you_mean(app, arguments) : "";
    return report_error(app, as_json || common.json,
                        meant.empty() ? error : UsageError(error).with_hint(meant));
  } catch (const Error& error) {
    return report_error(app, as_json || common.json, error);
  } catch (const std::bad_alloc&) {
    return report_error(app, as_json || common.json, IoError({}, "out of memory", 0));
  } catch (const std::exception& error) {
    std::cerr << app.get_name() << ": internal error: " << error.what() << "\n";
    return kBug;
  }
}

void print_json(const std::string& type, nlohmann::json data) {
  std::cout << dump({{"schema", kJsonSchema}, {"type", type}, {"data", std::move(data)}}) << "\n";
}

void note(const CLI::App& app, const Common& common, const std::string& text) {
  if (common.quiet) return;
  std::cerr << app.get_name() << ": " << styled(Terminal::of_stderr(), Style::warning, "note:")
            << " " << printable(text) << "\n";
}

InterruptGuard::InterruptGuard(Progress& progress) {
  cancel_flag = &progress.cancelled;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : kSignals) {
    struct sigaction inherited {};
    ::sigaction(signal, nullptr, &inherited);
    // What was started with nohup goes on when the terminal goes.
    if (inherited.sa_handler != SIG_IGN) ::sigaction(signal, &action, nullptr);
  }
}

InterruptGuard::~InterruptGuard() {
  for (const int signal : kSignals) {
    struct sigaction current {};
    ::sigaction(signal, nullptr, &current);
    if (current.sa_handler == on_signal) std::signal(signal, SIG_DFL);
  }
  cancel_flag = nullptr;
}

}  // namespace dsckpt::cli
