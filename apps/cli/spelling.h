// Arguments as people type them: Python's argparse spellings, and suggestions for mistakes.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

namespace dsckpt::cli {

// `arguments` with the option names of `app`, or of the subcommand in them. Underscores become
// hyphens ("--safe_serialization") and unambiguous beginnings become whole names ("--safe"). Words
// after "--" stay unchanged. A `help` before or instead of a subcommand becomes --help. A
// subcommand behind its path moves before it. Throws UsageError for `help` with a word that is not
// a subcommand.
std::vector<std::string> canonical_arguments(const CLI::App& app,
                                             std::vector<std::string> arguments);

// The first word of the canonical `arguments` if `app` needs a subcommand there, and it is none;
// else "".
std::string unknown_command(const CLI::App& app, const std::vector<std::string>& arguments);

// The first of the canonical `arguments` that is an option name which the command lacks; else "".
std::string unknown_option(const CLI::App& app, const std::vector<std::string>& arguments);

// True for a degree of tensor or pipeline parallelism, an option that no tool here has.
bool is_degree(const std::string& name);

// After the parse: the surplus word for which the command has no place, if there is only one; else
// "".
std::string word_too_many(const CLI::App& app, const std::vector<std::string>& arguments);

// True for an option that other programs have for a path, and that no tool here has.
bool is_option_of_a_path(const std::string& name);

// A suggestion, "did you mean '--sort'?", or empty if nothing is similar. It is for the first of
// the canonical `arguments` that is neither an option of the command nor one of the tool's
// subcommands.
std::string did_you_mean(const CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace dsckpt::cli
