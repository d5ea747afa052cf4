// Arguments as people type them: Python's argparse spellings, and guesses at what was meant.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

namespace dsckpt::cli {

// `arguments` with option names as `app`, or the subcommand that they name, has them: underscores
// become hyphens ("--safe_serialization") and unambiguous beginnings whole names ("--safe"). What
// follows "--" stays as it is. `help` before or instead of a subcommand becomes --help, and a
// subcommand behind its path goes before it. Throws UsageError for `help` of what is no subcommand.
std::vector<std::string> canonical_arguments(const CLI::App& app,
                                             std::vector<std::string> arguments);

// The first word of the canonical `arguments` where `app` wants a subcommand, and that is none; or
// "".
std::string unknown_command(const CLI::App& app, const std::vector<std::string>& arguments);

// The first of the canonical `arguments` that is an option's name that the command does not have,
// or "".
std::string unknown_option(const CLI::App& app, const std::vector<std::string>& arguments);

// Whether an option is a degree of tensor or pipeline parallelism, which no tool here takes.
bool is_degree(const std::string& name);

// After the parse: the word that the command has no place for, if that is one; or "".
std::string word_too_many(const CLI::App& app, const std::vector<std::string>& arguments);

// Whether an option is one that other programs have for a path, which has no option here.
bool is_option_of_a_path(const std::string& name);

// "did you mean '--sort'?" for the first of the canonical `arguments` that is no option of the
// command, or no subcommand of a tool that has some; empty if nothing is like it.
std::string did_you_mean(const CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace dsckpt::cli
