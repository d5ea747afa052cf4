#include "cli.h"

#include <poll.h>
#include <sys/resource.h>
#include <tbb/version.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <map>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "report.h"
#include "version.h"

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

std::vector<std::string> long_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// "--safe_serialization" and "--safe" both become "--safe-serialization".
std::string canonical_option(const std::string& argument, const std::vector<std::string>& known) {
  const size_t equals = std::min(argument.find('='), argument.size());
  std::string name = argument.substr(0, equals);
  std::replace(name.begin(), name.end(), '_', '-');
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    std::vector<std::string> matches;
    for (const std::string& candidate : known) {
      if (candidate.starts_with(name)) matches.push_back(candidate);
    }
    if (matches.size() == 1) name = matches.front();
  }
  return name + argument.substr(equals);
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

int report_error(const CLI::App& app, bool as_json, const Error& error) {
  if (as_json) print_json("error", error_json(error));
  std::cerr << app.get_name() << ": error: " << printable(error.what(), Newlines::keep) << "\n";
  if (!error.hint().empty()) std::cerr << "hint: " << printable(error.hint()) << "\n";
  return exit_code(error.kind());
}

}  // namespace

void add_common(CLI::App& app, Common& common) {
  app.add_flag("--json", common.json, "Results as JSON on stdout");
  app.add_flag("-q,--quiet", common.quiet, "No notes, no summary");
  app.set_version_flag("--version", version_text(app.get_name()));
  app.set_help_flag("-h,--help", "This text");
}

void add_checkpoint_options(CLI::App& app, const std::string& name, std::string& path,
                            OpenOptions& open) {
  app.add_option(name, path, "Folder with `latest` (or --tag), or a tag's own folder")->required();
  app.add_option("-t,--tag", open.tag, "Tag to read (default: what `latest` says)");
}

void add_pass_options(CLI::App& app, Common& common) {
  app.add_option("--threads", common.threads, "Threads to use (default: all cores)")
      ->check(CLI::Range(1, 4096))
      ->option_text("N");
  static const std::map<std::string, ProgressMode> kModes{{"auto", ProgressMode::automatic},
                                                          {"always", ProgressMode::always},
                                                          {"never", ProgressMode::never},
                                                          {"json", ProgressMode::json}};
  app.add_option_function<std::string>(
         "--progress", [&](const std::string& when) { common.progress = kModes.at(when); },
         "auto (if stderr is a terminal), always, never, or json")
      ->check(CLI::IsMember({"auto", "always", "never", "json"}))
      ->option_text("WHEN=auto");
}

void add_run_options(CLI::App& app, Common& common, RunOptions& run, bool& dry_run,
                     const std::string& force) {
  app.add_flag("--dry-run", dry_run, "Show what would be written; write nothing");
  app.add_flag("--force", run.stage.force, force);
  app.add_flag("--fsync", run.stage.durable,
               "Wait until the data is on the disk before it gets its final name");
  app.add_flag("--verify", run.verify,
               "Check the CRC32 of every record of the checkpoint, also those not needed");
  add_pass_options(app, common);
}

std::string footer(const std::string& examples) {
  return "Exit status: 0 done, 1 a check answered no, 2 usage, 3 bad checkpoint,\n"
         "4 I/O (a retry may help), 70 a bug in this tool, 130 interrupted.\n\nExamples:\n" +
         examples;
}

int run(CLI::App& app, const Common& common, int argc, char** argv,
        const std::function<int()>& body) {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit is an I/O error, not a death
  raise_descriptor_limit();
  bool as_json = false;
  try {
    try {
      std::vector<std::string> known = long_names(app);
      for (const CLI::App* sub : app.get_subcommands({})) {
        const std::vector<std::string> more = long_names(*sub);
        known.insert(known.end(), more.begin(), more.end());
      }
      std::sort(known.begin(), known.end());
      known.erase(std::unique(known.begin(), known.end()), known.end());
      std::vector<std::string> arguments;
      bool options = true;
      for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        options = options && argument != "--";
        arguments.push_back(options && argument.size() > 2 && argument.starts_with("--")
                                ? canonical_option(argument, known)
                                : argument);
        // `common` is filled in only if all arguments are right.
        as_json = as_json || (options && arguments.back() == "--json");
      }
      std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
      app.parse(std::move(arguments));
    } catch (const CLI::Success& success) {
      app.exit(success, std::cout, std::cerr);
      return kDone;
    } catch (const CLI::ParseError& error) {
      throw std::move(UsageError(error.what())).with_hint("--help lists the options");
    }
    const int code = body();
    flush_stdout();
    return code;
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
  if (!common.quiet) std::cerr << app.get_name() << ": note: " << printable(text) << "\n";
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

struct ProgressDisplay::Impl {
  using Clock = std::chrono::steady_clock;

  const Progress& progress;
  bool as_json;
  bool always;
  Clock::time_point start = Clock::now();
  std::mutex mutex;
  std::condition_variable wake;
  bool stop = false;
  bool drawn = false;
  std::thread thread;

  void loop() {
    std::unique_lock lock(mutex);
    while (!wake.wait_for(lock, std::chrono::milliseconds(170), [&] { return stop; })) show();
    if (as_json || always || drawn) show();
    if (drawn && !as_json) std::fputs("\n", stderr);
  }

  void show() {
    const uint64_t total = progress.bytes_total;
    if (total == 0) return;
    const uint64_t done = progress.bytes_done;
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
    const double left = rate > 0 ? static_cast<double>(total - done) / rate : 0;
    if (as_json) {
      std::cerr << dump({{"schema", kJsonSchema},
                         {"type", "progress"},
                         {"data",
                          {{"bytes_done", done},
                           {"bytes_total", total},
                           {"bytes_per_second", static_cast<uint64_t>(rate)},
                           {"seconds_left", left}}}})
                << "\n";
      return;
    }
    constexpr size_t kWidth = 30;
    const double fraction = static_cast<double>(done) / static_cast<double>(total);
    const size_t filled = static_cast<size_t>(fraction * kWidth);
    const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
    std::fprintf(stderr, "\r[%s] %3.0f %%  %s of %s  %s/s  %.0f s left \x1b[K", bar.c_str(),
                 fraction * 100, human_bytes(done).c_str(), human_bytes(total).c_str(),
                 human_bytes(static_cast<uint64_t>(rate)).c_str(), left);
    std::fflush(stderr);
    drawn = true;
  }
};

ProgressDisplay::ProgressDisplay(const Progress& progress, const Common& common) {
  const bool terminal = ::isatty(STDERR_FILENO) == 1 && !common.quiet;
  if (common.progress == ProgressMode::never ||
      (common.progress == ProgressMode::automatic && !terminal)) {
    return;
  }
  impl_ = std::make_unique<Impl>(progress, common.progress == ProgressMode::json,
                                 common.progress == ProgressMode::always);
  impl_->thread = std::thread([impl = impl_.get()] { impl->loop(); });
}

ProgressDisplay::~ProgressDisplay() {
  if (!impl_) return;
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->wake.notify_one();
  impl_->thread.join();
}

}  // namespace dsckpt::cli
