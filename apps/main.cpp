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
#include "cli/spelling.h"
#include "cli/tools.h"
#include "dsckpt/error.h"

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
  return cli::run(app, common, argc, argv, [] { return cli::kDone; });
}

// `dsckpt NAME` and `dsckpt help NAME` of a name that no tool has.
int refuse(const std::string& name, int argc, char** argv) {
  CLI::App app("", "dsckpt");
  cli::Common common;
  cli::add_common(app, common, false);
  std::string names;
  for (const cli::Tool* tool : kTools) {
    app.add_subcommand(tool->name, tool->description)->prefix_command();
    names += std::string(names.empty() ? "" : ", ") + tool->name;
  }
  const std::string meant = cli::did_you_mean(app, {name});
  app.prefix_command();  // what follows the name is of no concern
  return cli::run(app, common, argc, argv, [&]() -> int {
    throw UsageError("'" + printable(name) + "' is none of its tools")
        .with_hint(meant.empty() ? "the tools are " + names : meant);
  });
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
  const std::string first = argc > 1 ? argv[1] : "";
  if (!first.empty() && first[0] != '-' && first != "help") return refuse(first, argc, argv);
  if (argc > 2 && first == "help" && argv[2][0] != '-') {
    if (const cli::Tool* tool = find_tool(argv[2])) {
      std::string help = "--help";
      std::array<char*, 3> arguments{argv[2], help.data(), nullptr};
      return start(*tool, 2, arguments.data());
    }
    return refuse(argv[2], argc - 1, argv + 1);
  }
  return run_suite(argc, argv);
}
