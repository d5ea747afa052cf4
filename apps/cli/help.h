// What --help says: the layout of the text, and how it ends.
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

// The text that ends every --help: exit codes, then `examples`: commands two spaces to the right,
// and remarks.
std::string footer(const std::string& examples);
// The lines of the examples in the footer of `app`; none if it has no such footer.
std::vector<std::string> example_lines(const CLI::App& app);

// What stands for the value of an option or positional: "N", "TYPE"; empty for a flag.
std::string value_name(const CLI::Option& option);
// What an option is when it is not given, if its help says so: "auto".
std::string default_text(const CLI::Option& option);
// The values that an option takes, if they are listed (CLI::IsMember).
std::vector<std::string> choices_of(const CLI::Option& option);

// Lines of at most `width` columns.
std::shared_ptr<CLI::FormatterBase> help_formatter(size_t width);

}  // namespace dsckpt::cli
