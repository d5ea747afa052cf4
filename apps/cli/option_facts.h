// Facts of options and tools that CLI11 only prints, kept as data: help, man page and completions
// read them from here. Each is declared once, where the option is added. What CLI11 keeps apart is
// declared to CLI11: type_name() names the value, default_str() says what it is when not given.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <string>
#include <vector>

namespace dsckpt::cli {

// How words on the command line are compared with those that an option takes.
enum class Case { exact, ignored };

// Lets `option` take one of `words` only. With Case::ignored its value is spelled as in `words`.
CLI::Option* one_of(CLI::Option* option, const std::vector<std::string>& words,
                    Case compared = Case::exact);
// The words of one_of; none if any value will do.
const std::vector<std::string>& choices_of(const CLI::Option& option);

// Adds a check, of which the type name says nothing.
CLI::Option* quiet_check(CLI::Option* option, CLI::Validator validator);
// Lets `option`, which takes a path, take no empty one: that is a variable which was not set.
CLI::Option* some_path(CLI::Option* option);
// Lets `option` take numbers from `low` to `high`, both included.
template <typename T>
CLI::Option* in_range(CLI::Option* option, T low, T high) {
  return quiet_check(option, CLI::Range(low, high));
}
// Lets `option` take whole numbers from 1 on, as DeepSpeed's JSON has them, too: 1e9.
CLI::Option* count_from_one(CLI::Option* option);

// How a tool is called, for the end of its --help and its man page.
struct Examples {
  std::vector<std::string> commands;
  std::vector<std::string> remarks;  // lines below them
};
void set_examples(const CLI::App& app, Examples examples);
// None unless set.
const Examples& examples_of(const CLI::App& app);

// Another name of a command: "verify" for {"ckpt-inspect", "verify"}.
struct ShortName {
  std::string name;
  std::vector<std::string> stands_for;
};
// Those of a program of several tools, for completions; `app` itself does not know them.
void set_short_names(const CLI::App& app, std::vector<ShortName> names);
// None unless set.
const std::vector<ShortName>& short_names_of(const CLI::App& app);

}  // namespace dsckpt::cli
