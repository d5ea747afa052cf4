// ckpt-pack pack and unpack.

#include "dsckpt/pack.h"

#include <CLI/App.hpp>
#include <memory>
#include <string>

#include "ckpt_pack/commands.h"
#include "cli/carry_out.h"
#include "cli/far_paths.h"
#include "cli/option_facts.h"
#include "cli/steps.h"
#include "codec/frame.h"

namespace dsckpt::pack {
namespace {

struct PackArguments {
  std::string input;
  std::string output;
  int level = kDefaultPackLevel;
  bool sha256 = false;
  bool follow_links = false;
  cli::RunArguments run;
};

int run(const CLI::App& app, const cli::Common& common, PackArguments& args, bool packs) {
  if (common.is_later_share) return cli::work_on_share(app, common, args.output, args.run);
  Progress progress;
  const cli::InterruptGuard guard(progress);
  const Job job = cli::while_shown(progress, common, [&] {
    return (packs ? plan_pack : plan_unpack)(args.input, args.sha256, args.follow_links, &progress);
  });
  if (packs) args.run.options.pack = args.level;
  return cli::carry_out(app, common, job, args.output, args.run, progress);
}

Command add(CLI::App& app, cli::Common& common, bool packs) {
  CLI::App& sub = packs
                      ? *app.add_subcommand("pack", "Pack the files of tensors, losslessly")
                      : *app.add_subcommand("unpack", "Restore the original files, byte for byte");
  const auto args = std::make_shared<PackArguments>();
  cli::input_path(
      sub.add_option("input", args->input,
                     packs ? "Checkpoint, or any folder or file" : "Output of ckpt-pack or zstd"))
      ->type_name("PATH")
      ->required();
  cli::output_path(sub.add_option("output", args->output,
                                  "Folder for the result, which appears when it is complete"))
      ->type_name("DIR")
      ->required();
  if (packs) {
    cli::in_range(
        sub.add_option(
            "--level", args->level,
            "zstd's level for repetitive data; other data is coded the same at all levels"),
        kLowestPackLevel, kHighestPackLevel)
        ->type_name("N")
        ->capture_default_str();
  }
  sub.add_flag("--sha256", args->sha256,
               packs ? "Keep the SHA-256 of each file too, which takes an extra pass"
                     : "Compare with the SHA-256 that pack --sha256 has kept");
  cli::add_follow_links(sub, args->follow_links);
  cli::add_output_options(sub, common, args->run, "Replace the output folder");
  if (packs) {
    sub.add_flag("--verify", args->run.options.verify,
                 "Check the CRC32 of every record, even of those without a tensor");
  }
  return cli::command_with_ranks(
      sub, common, [&app, &common, args, packs] { return run(app, common, *args, packs); });
}

}  // namespace

Command add_pack(CLI::App& app, cli::Common& common) {
  return add(app, common, true);
}

Command add_unpack(CLI::App& app, cli::Common& common) {
  return add(app, common, false);
}

}  // namespace dsckpt::pack
