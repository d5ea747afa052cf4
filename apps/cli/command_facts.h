// Facts about a tool's options for completions and the man page. They are read from the CLI::App
// that parses the options, so each is declared once.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "cli/option_facts.h"

namespace dsckpt::cli {

enum class ValueKind {
  none,    // a flag
  choice,  // one of `choices`
  folder,
  file,    // or a folder
  tag,     // of the checkpoint that is named on the line
  tensor,  // of what is
  text,    // what a shell cannot guess
};

struct OptionFacts {
  std::vector<std::string> names;  // "-t", "--tag"; the one name of a positional
  std::string value;               // "TAG"
  ValueKind kind = ValueKind::none;
  std::vector<std::string> choices;
  std::string unless_given;  // the default, if --help says it
  std::string description;   // one line
  bool required = false;
  bool repeated = false;
};

struct CommandFacts {
  std::string name;
  std::string description;  // one line
  std::vector<OptionFacts> positionals;
  std::vector<OptionFacts> options;
  std::vector<CommandFacts> subcommands;
  bool needs_subcommand = false;
  bool is_program = false;  // a subcommand that is a command of its own, with its own facts
  Examples examples;
  std::vector<ShortName> short_names;  // of programs among the subcommands, or their commands
};

// The options in --help: hidden options and subcommands, those without a group, are left out.
CommandFacts facts_of(const CLI::App& app);

// A line of JSON, of type "options" (messages.h): {"name", "description", "positionals": [option],
// "options": [option], "commands": [the same]}. An option is {"names", "value", "kind", "choices",
// "unless_given", "description", "required", "repeated"}.
std::string facts_json(const CommandFacts& facts);

}  // namespace dsckpt::cli
