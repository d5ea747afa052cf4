// ckpt-inspect: the content of a checkpoint, its defects, and the differences between two.

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <array>
#include <vector>

#include "ckpt_inspect/commands.h"
#include "cli/option_facts.h"
#include "cli/tools.h"

namespace dsckpt {
namespace {

// The order in --help.
constexpr std::array kCommands = {
    &inspect::add_browse, &inspect::add_tree, &inspect::add_list,  &inspect::add_where,
    &inspect::add_print,  &inspect::add_raw,  &inspect::add_stats, &inspect::add_verify,
    &inspect::add_diff,   &inspect::add_scan,
};

int run(CLI::App& app, int argc, char** argv) {
  cli::Common common;
  const inspect::Command summary = inspect::add_summary(app, common);
  // Subcommands have a path of their own.
  app.get_option("path")->required(false);
  cli::add_common(app, common);
  std::vector<inspect::Command> commands;
  for (inspect::AddCommand* add : kCommands) {
    commands.push_back(add(app, common));
    cli::add_common(*commands.back().app, common);
  }
  app.require_subcommand(0, 1);
  cli::set_examples(
      app, {.commands = {"ckpt-inspect checkpoint-500 --gpus 64",
                         "ckpt-inspect verify checkpoint-500 --finite",
                         "ckpt-inspect list checkpoint-500 --match norm --sort size",
                         "ckpt-inspect where checkpoint-500 lm_head.weight --state exp_avg",
                         "ckpt-inspect diff checkpoint-500 converted/"},
            .remarks = {}});
  return cli::run(app, common, argc, argv, [&] {
    const auto chosen =
        std::find_if(commands.begin(), commands.end(),
                     [](const inspect::Command& command) { return command.app->parsed(); });
    return chosen == commands.end() ? summary.run() : chosen->run();
  });
}

}  // namespace

constexpr cli::Tool kCkptInspect{"ckpt-inspect", "Shows the content of a DeepSpeed checkpoint.",
                                 run, true};

}  // namespace dsckpt
