// dsckpt: all tools in one program. Called by a link of a tool's name it is that tool; as itself it
// takes the name as its first argument.

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

// In the order in which --help has them.
constexpr std::array kTools = {&kZeroToFp32, &kToUniversal, &kReshard,
                               &kToDcp,      &kCkptInspect, &kCkptPack};

// By its name, also with underscores, or without "ckpt-" in front; nullptr if it is none.
const cli::Tool* find_tool(std::string_view called) {
  std::string name(called);
  std::replace(name.begin(), name.end(), '_', '-');
  const auto found = std::find_if(kTools.begin(), kTools.end(), [&](const cli::Tool* tool) {
    return tool->name == name || tool->name == "ckpt-" + name;
  });
  return found == kTools.end() ? nullptr : *found;
}

int start(const cli::Tool& tool, int argc, char** argv) {
  CLI::App app(tool.description, tool.name);
  return tool.run(app, argc, argv);
}

// With other arguments than the program was given.
int start(const cli::Tool& tool, std::vector<std::string> arguments) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  return start(tool, static_cast<int>(arguments.size()), pointers.data());
}

// The tool's name among the arguments, behind options that all tools have; their number if there is
// none.
size_t find_name(const CLI::App& suite, const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (find_tool(arguments[i]) != nullptr) return i;
    const size_t equals = arguments[i].find('=');  // --color=never
    const CLI::Option* option = suite.get_option_no_throw(arguments[i].substr(0, equals));
    if (option == nullptr) break;
    if (option->get_expected_max() > 0 && equals == std::string::npos) ++i;
  }
  return arguments.size();
}

// What is about no single tool: help, version, completions, and names that are none.
int run_suite(int argc, char** argv) {
  CLI::App app("What people do with DeepSpeed checkpoints, a tool each.", "dsckpt");
  cli::Common common;
  cli::add_common(app, common, false);
  for (const cli::Tool* tool : kTools) {
    app.add_subcommand(tool->name, tool->description)->prefix_command();
  }
  app.require_subcommand(1);
  cli::set_examples(app, {.commands = {"dsckpt zero-to-fp32 . weights/ --safe-serialization",
                                       "dsckpt inspect checkpoint-500", "dsckpt help reshard"},
                          .remarks = {"A link of a tool's name to this program is that tool."}});
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  if (const size_t at = find_name(app, arguments); at < arguments.size()) {
    std::rotate(arguments.begin(), arguments.begin() + static_cast<std::ptrdiff_t>(at),
                arguments.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    const cli::Tool* tool = find_tool(arguments.front());
    return start(*tool, std::move(arguments));
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
  const bool asks = argc > 2 && argv[1] == std::string_view("help");
  if (const cli::Tool* tool = asks ? find_tool(argv[2]) : nullptr) {
    if (argc == 3) return start(*tool, {argv[2], "--help"});
    if (tool->has_commands) {
      std::vector<std::string> arguments{argv[2], "help"};
      arguments.insert(arguments.end(), argv + 3, argv + argc);
      return start(*tool, std::move(arguments));
    }
  }
  return run_suite(argc, argv);
}
