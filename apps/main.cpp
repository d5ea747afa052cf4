// dsckpt: all tools in one program. A link with a tool's name runs that tool; dsckpt itself takes
// the name as its first argument.

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "cli/cli.h"
#include "cli/option_facts.h"
#include "cli/tools.h"

namespace dsckpt {
namespace {

// The order in --help.
constexpr std::array kTools = {&kZeroToFp32,  &kToUniversal, &kReshard, &kToDcp,
                               &kCkptInspect, &kCkptPack,    &kCkptPlan};

// Finds a tool by its name, also with underscores or without "ckpt-". Returns nullptr if there is
// none.
const cli::Tool* find_tool(std::string_view called) {
  std::string name(called);
  std::replace(name.begin(), name.end(), '_', '-');
  const auto found = std::find_if(kTools.begin(), kTools.end(), [&](const cli::Tool* tool) {
    return tool->name == name || tool->name == "ckpt-" + name;
  });
  return found == kTools.end() ? nullptr : *found;
}

// A short name for the first argument.
struct Short {
  const char* name;
  const cli::Tool* tool;
  bool is_command;  // else of the tool itself
};
constexpr std::array kShorts = {
    Short{"convert", &kZeroToFp32, false}, Short{"verify", &kCkptInspect, true},
    Short{"diff", &kCkptInspect, true},    Short{"scan", &kCkptInspect, true},
    Short{"stats", &kCkptInspect, true},   Short{"list", &kCkptInspect, true},
    Short{"tree", &kCkptInspect, true},    Short{"where", &kCkptInspect, true},
    Short{"print", &kCkptInspect, true},   Short{"raw", &kCkptInspect, true},
    Short{"browse", &kCkptInspect, true},  Short{"unpack", &kCkptPack, true},
    Short{"strip", &kCkptPack, true},      Short{"keep", &kCkptPack, true},
    Short{"work", &kCkptPlan, true},       Short{"commit", &kCkptPlan, true},
    Short{"steps", &kCkptPlan, true},      Short{"abandon", &kCkptPlan, true},
};

// Returns the words that `called` stands for: a tool's name, perhaps with a command of it. Returns
// none if it is neither.
std::vector<std::string> words_of(std::string_view called) {
  if (const cli::Tool* tool = find_tool(called)) return {tool->name};
  const auto found = std::find_if(kShorts.begin(), kShorts.end(),
                                  [&](const Short& each) { return each.name == called; });
  if (found == kShorts.end()) return {};
  if (found->is_command) return {found->tool->name, found->name};
  return {found->tool->name};
}

int start(const cli::Tool& tool, int argc, char** argv) {
  CLI::App app(tool.description, tool.name);
  return tool.run(app, argc, argv);
}

// Starts a tool with arguments other than the program's.
int start(const cli::Tool& tool, std::vector<std::string> arguments) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  return start(tool, static_cast<int>(arguments.size()), pointers.data());
}

// Returns the index of the argument that names a tool or a command, after common options. Returns
// the number of arguments if none does.
size_t find_name(const CLI::App& suite, const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!words_of(arguments[i]).empty()) return i;
    const size_t equals = arguments[i].find('=');  // --color=never
    const CLI::Option* option = suite.get_option_no_throw(arguments[i].substr(0, equals));
    if (option == nullptr) break;
    if (option->get_expected_max() > 0 && equals == std::string::npos) ++i;
  }
  return arguments.size();
}

// Handles help, version, completions and unknown names, which do not belong to a single tool.
int run_suite(int argc, char** argv) {
  CLI::App app("Tools for DeepSpeed checkpoints.", "dsckpt");
  cli::Common common;
  cli::add_common(app, common, false);
  for (const cli::Tool* tool : kTools) {
    app.add_subcommand(tool->name, tool->description)->prefix_command();
  }
  std::vector<cli::ShortName> short_names;
  for (const Short& each : kShorts) {
    // They are hidden, but a misspelling gets a suggestion.
    app.add_subcommand(each.name)->prefix_command()->group("");
    short_names.push_back({each.name, words_of(each.name)});
  }
  cli::set_short_names(app, std::move(short_names));
  app.require_subcommand(1);
  cli::set_examples(
      app, {.commands = {"dsckpt zero-to-fp32 . weights/ --safe-serialization",
                         "dsckpt inspect checkpoint-500", "dsckpt help reshard"},
            .remarks = {"A link to this program with a tool's name runs that tool.",
                        "dsckpt verify is ckpt-inspect verify; dsckpt convert is zero-to-fp32."}});
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  if (const size_t at = find_name(app, arguments); at < arguments.size()) {
    std::vector<std::string> words = words_of(arguments[at]);
    const cli::Tool* tool = find_tool(words.front());
    arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(at));
    words.insert(words.end(), arguments.begin(), arguments.end());
    return start(*tool, std::move(words));
  }
  return cli::run(app, common, argc, argv, [] { return cli::kDone; });
}

}  // namespace
}  // namespace dsckpt

int main(int argc, char** argv) {
  using namespace dsckpt;
  const std::string_view program = argc > 0 ? argv[0] : "";
  if (const cli::Tool* tool = find_tool(program.substr(program.rfind('/') + 1))) {
    return start(*tool, argc, argv);
  }
  const cli::Tool* const named = argc > 1 ? find_tool(argv[1]) : nullptr;
  if (named != nullptr) return start(*named, argc - 1, argv + 1);
  if (argc > 2 && argv[1] == std::string_view("help")) {
    std::vector<std::string> words = words_of(argv[2]);
    const cli::Tool* const tool = words.empty() ? nullptr : find_tool(words.front());
    if (words.size() == 1 && argc == 3) return start(*tool, {words.front(), "--help"});
    if (tool != nullptr && tool->has_commands) {
      words.insert(words.begin() + 1, "help");
      words.insert(words.end(), argv + 3, argv + argc);
      return start(*tool, std::move(words));
    }
  }
  return run_suite(argc, argv);
}
