// ckpt-pack strip.

#include <CLI/App.hpp>
#include <memory>
#include <string>

#include "ckpt_pack/commands.h"
#include "cli/carry_out.h"
#include "cli/every_tag.h"
#include "cli/far_paths.h"
#include "cli/option_facts.h"
#include "dsckpt/pack.h"

namespace dsckpt::pack {
namespace {

struct StripArguments {
  std::string input;
  std::string output;
  std::string keep;
  SourceOptions source;
  cli::RunArguments run;
};

int strip_one(const CLI::App& app, const cli::Common& common, StripArguments& args, Keep keep) {
  Progress progress;
  const cli::InterruptGuard guard(progress);
  args.source.progress = &progress;
  const Job job = cli::while_shown(
      progress, common, [&] { return plan_strip(Source::open(args.input, args.source), keep); });
  return cli::carry_out(app, common, job, args.output, args.run, progress);
}

int strip(const CLI::App& app, const cli::Common& common, StripArguments& args) {
  const Keep keep = args.keep == to_string(Keep::weights) ? Keep::weights : Keep::resume;
  args.source.optimizer_states = keep == Keep::resume;
  args.source.weights = false;
  return cli::for_each_tag(app, common, args.input, args.source, args.output, args.run,
                           [&] { return strip_one(app, common, args, keep); });
}

}  // namespace

Command add_strip(CLI::App& app, cli::Common& common) {
  CLI::App& sub =
      *app.add_subcommand("strip", "Keep only the weights, or only the parts that a resume needs");
  const auto args = std::make_shared<StripArguments>();
  cli::add_checkpoint_options(sub, "input", args->input, args->source);
  cli::output_path(sub.add_option("output", args->output,
                                  "Folder for the result, which appears when it is complete"))
      ->type_name("DIR")
      ->required();
  cli::one_of(
      sub.add_option("--keep", args->keep,
                     "weights: no optimizer states, and no weights that also exist as masters;\n"
                     "resume: everything that DeepSpeed loads, without bytes that no tensor uses"),
      {to_string(Keep::weights), to_string(Keep::resume)})
      ->type_name("WHAT")
      ->required();
  cli::add_follow_links(sub, args->source.follow_links);
  cli::add_output_options(sub, common, args->run, "Replace strip's earlier output");
  sub.add_flag("--verify", args->run.options.verify,
               "Check the CRC32 of every record, also of those that are left out");
  cli::add_pack_flag(sub, "--pack", args->run,
                     "Pack the result, too (see ckpt-pack pack); --pack=LEVEL is its --level");
  return cli::command_with_ranks(sub, common,
                                 [&app, &common, args] { return strip(app, common, *args); });
}

}  // namespace dsckpt::pack
