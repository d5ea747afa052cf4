// The text of --help: its layout, and its end (exit codes, then the examples of option_facts.h).
#pragma once

#include <CLI/App.hpp>
#include <memory>
#include <string>
#include <vector>

namespace dsckpt::cli {

struct ExitStatus {
  int code;
  const char* meaning;
};
// All exit codes of the tools (cli.h, ExitCode).
const std::vector<ExitStatus>& exit_statuses();

// "-t", "--tag".
std::vector<std::string> option_names(const CLI::Option& option);
// The placeholder for the value of an option or positional: "N", "TYPE"; empty for a flag.
std::string value_name(const CLI::Option& option);

// Lines of at most `width` columns.
std::shared_ptr<CLI::FormatterBase> help_formatter(size_t width);

}  // namespace dsckpt::cli
