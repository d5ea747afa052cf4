#include "cli/cli.h"

#include <poll.h>
#include <stdio_ext.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "cli/far_paths.h"
#include "cli/interrupt.h"
#include "cli/messages.h"
#include "cli/spelling.h"
#include "cli/steps.h"
#include "cli/terminal.h"
#include "dsckpt/error.h"
#include "exec/rank_readers.h"
#include "io/far_files.h"
#include "report/report.h"

namespace dsckpt::cli {

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

namespace {

// A run may open hundreds of shards.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// "reshard [OPTIONS] input output --dp N; --help lists the options"
std::string usage_of(const CLI::App& app) {
  const CLI::App* command = &app;
  std::string text = app.get_name();
  for (const CLI::App* sub : app.get_subcommands()) {
    command = sub;
    text += " " + sub->get_name();
  }
  text += " [OPTIONS]";
  for (const CLI::Option* option : command->get_options()) {
    if (!option->get_positional()) continue;
    const std::string name = option->get_name(true);
    text += option->get_required() ? " " + name : " [" + name + "]";
  }
  for (const CLI::Option* option : command->get_options()) {
    if (option->get_positional() || !option->get_required()) continue;
    text += " --" + option->get_lnames().front() + " " + option->get_type_name();
  }
  return text + "; --help lists the options";
}

// Returns a hint for arguments that were not understood.
std::string usage_hint(const CLI::App& app, const std::vector<std::string>& arguments,
                       bool something_is_missing) {
  const std::string unknown = unknown_option(app, arguments);
  if (is_option_of_a_path(unknown)) return "paths are positional arguments: " + usage_of(app);
  if (is_degree(unknown)) {
    return "reshard makes files for other tensor-parallel ranks (--tp) and pipeline stages (--pp); "
           "to-universal writes checkpoints for any grid";
  }
  const std::string word = word_too_many(app, arguments);
  const CLI::App& command = app.get_subcommands().empty() ? app : *app.get_subcommands().front();
  if (!word.empty() && command.get_option_no_throw("--match") != nullptr) {
    return "--match " + shell_word(word) + " chooses the names that it is found in";
  }
  const std::string meant = did_you_mean(app, arguments);
  if (something_is_missing && !unknown.empty()) {
    return "there is no " + unknown + (meant.empty() ? ": " + usage_of(app) : "; " + meant);
  }
  if (meant.empty()) return something_is_missing ? usage_of(app) : "--help lists the options";
  return meant + " --help lists the options";
}

// Returns whether there is something to run. --help and similar options have printed their text.
bool parse(CLI::App& app, const std::vector<std::string>& arguments) {
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11's order
    return true;
  } catch (const CLI::Success& success) {
    app.exit(success, std::cout, std::cerr);
    return false;
  } catch (const CLI::ParseError& error) {
    const bool missing = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
    throw UsageError(error.what()).with_hint(usage_hint(app, arguments, missing));
  }
}

nlohmann::json with_status(const Error& error) {
  nlohmann::json data = error_json(error);
  data["status"] = exit_code(error.kind());
  return data;
}

std::string error_text(const CLI::App& app, const Error& error) {
  const Terminal terminal = Terminal::of_stderr();
  std::string text = app.get_name() + ": " + styled(terminal, Style::bad, "error:") + " " +
                     printable(shown_text(error.what()), Newlines::keep) + "\n";
  if (!error.hint().empty()) {
    text +=
        styled(terminal, Style::bold, "hint:") + " " + printable(shown_text(error.hint())) + "\n";
  }
  return text;
}

}  // namespace

int report_error(const CLI::App& app, bool as_json, const Error& error, const std::string& path) {
  if (as_json) {
    nlohmann::json data = with_status(error);
    if (!path.empty()) data["path"] = path;
    print_json("error", std::move(data));
  }
  std::cerr << error_text(app, error);
  return exit_code(error.kind());
}

namespace {

int report_bug(const CLI::App& app, const std::exception& error) {
  std::cerr << app.get_name() << ": internal error: " << error.what() << "\n";
  return kBug;
}

IoError out_of_memory(const Common& common) {
  if (common.max_memory == 0) return {{}, "out of memory", 0};
  return IoError({}, "more memory is needed than --max-memory allows", 0)
      .with_hint("allow more: the program itself takes some of it, and each of its --threads more");
}

IoError out_of_threads(const Common& common) {
  if (common.max_memory != 0) return out_of_memory(common);
  return IoError({}, "cannot start as many threads", EAGAIN)
      .with_hint("give fewer --threads; 'ulimit -u' and a container's limits bound them");
}

enum class Want { nothing, memory, threads };

// Returns the missing resource. Allocates nothing.
Want want_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return Want::memory;
  // oneTBB's error for threads has no type of its own.
  if (std::string_view(error.what()).starts_with("pthread_create")) return Want::threads;
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  const int code = system == nullptr ? 0 : system->code().value();
  return code == EAGAIN || code == ENOMEM ? Want::threads : Want::nothing;
}

// Nobody can catch an error of oneTBB's threads that lack memory or cannot start another thread.
LastWords words_of_want;
std::terminate_handler otherwise = nullptr;

[[noreturn]] void end_for_want() {
  Want want = Want::nothing;
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    want = want_of(error);
  } catch (...) {
  }
  if (want != Want::nothing) end_at_once(words_of_want, kIo);
  otherwise();
  std::abort();
}

void say_when_something_is_wanting(const CLI::App& app, const Common& common) {
  const IoError error = out_of_threads(common);
  words_of_want = {.on_stderr = error_text(app, error),
                   .on_stdout = common.json ? json_line("error", with_status(error)) : ""};
  otherwise = std::set_terminate(end_for_want);
}

void say_when_interrupted(const CLI::App& app, bool as_json) {
  static LastWords words;
  const InterruptedError error;
  words.on_stderr = app.get_name() + ": error: " + error.what() + "\n";
  if (as_json) words.on_stdout = json_line("error", with_status(error));
  set_last_words(words);
}

}  // namespace

void flush_stdout() {
  errno = 0;
  std::cout.flush();
  if (std::cout) return;
  const int failed = errno;
  pollfd reader{STDOUT_FILENO, POLLOUT, 0};
  if (::poll(&reader, 1, 0) == 1 && (reader.revents & (POLLERR | POLLHUP)) != 0) return;
  throw IoError({}, "cannot write to standard output", failed);
}

void forget_stdout() {
  ::__fpurge(stdout);
  std::cout.clear();
}

namespace {

// Runs `body`, reports errors and returns the exit code.
int run_and_report(CLI::App& app, const Common& common, int argc, char** argv,
                   const std::function<int()>& body) {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit becomes an I/O error
  raise_descriptor_limit();
  FarPaths far;
  bool as_json = false;
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  if (arguments.empty() && !app.get_subcommands({}).empty()) {
    std::cerr << app.help();
    return kUsage;
  }
  try {
    arguments = canonical_arguments(app, arguments);
    // `common` is set only if all arguments are valid.
    const auto options_end = std::find(arguments.begin(), arguments.end(), "--");
    as_json = std::find(arguments.begin(), options_end, "--json") != options_end;
    say_when_interrupted(app, as_json);
    if (const std::string word = unknown_command(app, arguments); !word.empty()) {
      throw UsageError("there is no command '" + word + "'")
          .with_hint(usage_hint(app, arguments, false));
    }
    int code = kDone;
    if (parse(app, arguments)) {
      say_when_something_is_wanting(app, common);
      code = far.run(app, common, body);
    }
    flush_stdout();
    return code;
  } catch (const UsageError& error) {
    // A misspelled subcommand may have been taken for a path.
    const bool other = !app.get_subcommands({}).empty() && app.get_subcommands().empty();
    const std::string meant = other ? did_you_mean(app, arguments) : "";
    const bool is_said = error.hint().find(meant) != std::string::npos;
    if (meant.empty() || is_said) return report_error(app, as_json || common.json, error);
    const std::string hint = error.hint().empty() ? meant : meant + " " + error.hint();
    return report_error(app, as_json || common.json, UsageError(error).with_hint(hint));
  } catch (const Error& error) {
    return report_error(app, as_json || common.json, error);
  } catch (const std::filesystem::filesystem_error& error) {
    return report_error(
        app, as_json || common.json,
        IoError({.file = error.path1().string()}, "cannot be looked at", error.code().value()));
  } catch (const std::exception& error) {
    const Want want = want_of(error);
    if (want == Want::nothing) return report_bug(app, error);
    return report_error(app, as_json || common.json,
                        want == Want::memory ? out_of_memory(common) : out_of_threads(common));
  }
}

}  // namespace

int run(CLI::App& app, const Common& common, int argc, char** argv,
        const std::function<int()>& body) {
  const int status = run_and_report(app, common, argc, argv, body);
  end_ranks(common, status);
  return status;
}

Command command_with_ranks(CLI::App& sub, Common& common, std::function<int()> body) {
  add_pass_options(sub, common);
  add_rank_options(sub, common);
  return {&sub, [&common, body = std::move(body)] { return with_ranks(common, body); }};
}

Command command_of_readers(CLI::App& app, CLI::App& sub, Common& common,
                           std::function<int()> body) {
  const auto steps = std::make_shared<ReadingSteps>();
  add_step_options(sub, common, *steps);
  return command_with_ranks(sub, common, [&app, &common, steps, body = std::move(body)] {
    if (steps->any()) return read_in_steps(app, common, *steps, body);
    if (common.ranks) common.readers = std::make_shared<RankReaders>(*common.ranks);
    return body();
  });
}

}  // namespace dsckpt::cli
