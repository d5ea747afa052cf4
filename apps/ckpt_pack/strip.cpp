// ckpt-pack strip.

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/checkpoint.h"
#include "ckpt_pack/commands.h"
#include "cli/run_plan.h"
#include "cli/terminal.h"
#include "pack/plan_strip.h"
#include "report/report.h"

namespace dsckpt::pack {
namespace {

struct Arguments {
  std::string input;
  std::string output;
  std::string keep;
  OpenOptions open;
  bool dry_run = false;
  RunOptions run;
};

std::string text_of(const StripPlan& plan) {
  cli::Table table({{"file", cli::Table::Align::left, true},
                    {"before", cli::Table::Align::right},
                    {"after", cli::Table::Align::right}});
  for (const StrippedFile& file : plan.files) {
    table.add({printable(file.path), human_bytes(file.before), human_bytes(file.after)});
  }
  return table.text(cli::Terminal::of_stdout()) + std::to_string(plan.files.size()) + " files, " +
         human_bytes(plan.bytes_before()) + " become " + human_bytes(plan.bytes_after()) + "\n";
}

int strip(const CLI::App& app, const cli::Common& common, Arguments& args) {
  const Keep keep = args.keep == to_string(Keep::weights) ? Keep::weights : Keep::resume;
  args.open.optimizer_states = keep == Keep::resume;
  args.run.threads = common.threads;
  Progress progress;
  const cli::InterruptGuard guard(progress);
  InputFiles inputs;
  const Checkpoint source = Checkpoint::open(inputs, args.input, args.open);
  const StripPlan plan = plan_strip(inputs, source, args.input, keep);
  check_strip_place(source, plan, args.output, args.run.stage.force);
  for (const std::string& text : plan.notes) cli::note(app, common, text);
  return cli::show_or_run(
      app, common, args.dry_run, progress,
      {.source = &source,
       .output = args.output,
       .what = human_bytes(plan.bytes_before()) + " stripped to " +
               (keep == Keep::weights ? "the weights" : "what DeepSpeed loads"),
       .json = [&] { return plan_json(plan); },
       .text = [&] { return text_of(plan); },
       .run = [&] { return run_strip(plan, inputs, args.output, progress, args.run); }});
}

}  // namespace

Command add_strip(CLI::App& app, cli::Common& common) {
  CLI::App& sub =
      *app.add_subcommand("strip", "Only what holds the weights, or what a resume needs");
  const auto args = std::make_shared<Arguments>();
  cli::add_checkpoint_options(sub, "input", args->input, args->open);
  sub.add_option("output", args->output, "Folder for the result, which is made as a whole")
      ->type_name("DIR")
      ->required();
  sub.add_option("--keep", args->keep,
                 "weights: without optimizer states and the weights that there are masters of;\n"
                 "resume: all that DeepSpeed loads, without bytes that no tensor reaches")
      ->check(CLI::IsMember({to_string(Keep::weights), to_string(Keep::resume)}))
      ->option_text("WHAT")
      ->required();
  cli::add_output_options(sub, args->run, args->dry_run, "Replace what strip wrote there before");
  sub.add_flag("--verify", args->run.verify,
               "Check the CRC32 of every record, also of those that are left out");
  cli::add_pack_flag(sub, "--pack", args->run,
                     "Pack the result, too (see ckpt-pack pack); --pack=LEVEL is its --level");
  cli::add_pass_options(sub, common);
  return {&sub, [&app, &common, args] { return strip(app, common, *args); }};
}

}  // namespace dsckpt::pack
