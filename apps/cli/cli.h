// The common part of all tools: parsing, messages, exit codes. Only this prints errors and decides
// how the process ends.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>
#include <vector>

#include "cli/help.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/progress_display.h"
#include "cli/ranks.h"
#include "dsckpt/error.h"

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

// The exit code for an error of that kind.
int exit_code(ErrorKind kind);
// Prints `error` on stderr, and with `as_json` as an object on stdout, with "path" unless `path` is
// "". Returns its exit code.
int report_error(const CLI::App& app, bool as_json, const Error& error,
                 const std::string& path = "");

// A subcommand that was added to a tool.
struct Command {
  CLI::App* app;
  std::function<int()> run;  // the exit code
};
// Adds a subcommand, with its options, to `app`. Its state lives as long as the Command.
using AddCommand = Command(CLI::App& app, Common& common);
// The command of `sub` whose `body` runs with_ranks(). Adds the options of add_pass_options and
// add_rank_options.
Command command_with_ranks(CLI::App& sub, Common& common, std::function<int()> body);
// The same for a command that only reads, by common.readers. It can also be done in steps, with
// common.step. Then `body` is called for the first and for the last one.
Command command_of_readers(CLI::App& app, CLI::App& sub, Common& common, std::function<int()> body);

// Parses `argv` into `app` and runs `body`, whose result is the exit code. Accepts the spellings of
// Python's argparse (spelling.h). Errors become a message on stderr (and a JSON object on stdout
// with --json) and an exit code. Without arguments, a tool of subcommands shows its help on stderr.
int run(CLI::App& app, const Common& common, int argc, char** argv,
        const std::function<int()>& body);

// The same for a tool without subcommands, as Tool::run. `add_options` fills an Arguments, whose
// member `common` is the Common options. Then `work` carries them out.
template <typename Arguments, void (*add_options)(CLI::App&, Arguments&),
          int (*work)(const CLI::App&, Arguments&)>
int run_tool(CLI::App& app, int argc, char** argv) {
  Arguments arguments;
  add_options(app, arguments);
  return run(app, arguments.common, argc, argv,
             [&] { return with_ranks(arguments.common, [&] { return work(app, arguments); }); });
}

// Throws IoError if printed text cannot be delivered. A pipe that its reader has closed is no
// error: the reader has seen enough.
void flush_stdout();
// Drops text that could not be printed, so that it is not an error again.
void forget_stdout();

}  // namespace dsckpt::cli
