// ckpt-pack: smaller files of the same checkpoint.

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <array>
#include <vector>

#include "ckpt_pack/commands.h"
#include "cli/option_facts.h"
#include "cli/tools.h"

namespace dsckpt {
namespace {

// The order in --help.
constexpr std::array kCommands = {
    &pack::add_pack, &pack::add_unpack, &pack::add_strip, &pack::add_estimate, &pack::add_keep,
};

int run(CLI::App& app, int argc, char** argv) {
  cli::Common common;
  cli::add_common(app, common);
  std::vector<pack::Command> commands;
  for (pack::AddCommand* add : kCommands) {
    commands.push_back(add(app, common));
    cli::add_common(*commands.back().app, common);
  }
  app.require_subcommand(1);
  cli::set_examples(
      app, {.commands = {"ckpt-pack estimate checkpoint-500",
                         "ckpt-pack pack checkpoint-500 checkpoint-500-packed",
                         "zero-to-fp32 checkpoint-500-packed weights",
                         "ckpt-pack unpack checkpoint-500-packed checkpoint-500",
                         "ckpt-pack strip checkpoint-500 checkpoint-500-weights --keep weights",
                         "ckpt-pack keep run --to /nas/run --last 3"},
            .remarks = {"All tools read packed checkpoints as they are.",
                        "DeepSpeed and torch need them unpacked."}});
  return cli::run(app, common, argc, argv, [&] {
    return std::find_if(commands.begin(), commands.end(),
                        [](const pack::Command& command) { return command.app->parsed(); })
        ->run();
  });
}

}  // namespace

constexpr cli::Tool kCkptPack{"ckpt-pack", "The same checkpoint in fewer bytes.", run, true};

}  // namespace dsckpt
