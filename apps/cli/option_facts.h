// Facts of options and tools that CLI11 only prints, kept as data for help, man page and
// completions. Each is declared once, where the option is added. Some facts have a place in CLI11:
// type_name() is the name of the value, default_str() is its default.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <string>
#include <vector>

namespace dsckpt::cli {

// The way that words on the command line are compared with an option's choices.
enum class Case { exact, ignored };

// Lets `option` take one of `words` only. With Case::ignored its value is spelled as in `words`.
CLI::Option* one_of(CLI::Option* option, const std::vector<std::string>& words,
                    Case compared = Case::exact);
// The words of one_of; none if any value is allowed.
const std::vector<std::string>& choices_of(const CLI::Option& option);

// Adds a check that does not appear in the type name.
CLI::Option* quiet_check(CLI::Option* option, CLI::Validator validator);
// Makes `option`, which takes a path, refuse an empty one: that is a variable without a value.
CLI::Option* some_path(CLI::Option* option);
// Lets `option` take numbers from `low` to `high`, both included.
template <typename T>
CLI::Option* in_range(CLI::Option* option, T low, T high) {
  return quiet_check(option, CLI::Range(low, high));
}
// Lets `option` take whole numbers from 1 on, also in the form of DeepSpeed's JSON: 1e9.
CLI::Option* count_from_one(CLI::Option* option);

// Example calls of a tool, for the end of its --help and its man page.
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
// The short names in a program of several tools, for completions; `app` itself does not know them.
void set_short_names(const CLI::App& app, std::vector<ShortName> names);
// None unless set.
const std::vector<ShortName>& short_names_of(const CLI::App& app);

}  // namespace dsckpt::cli
