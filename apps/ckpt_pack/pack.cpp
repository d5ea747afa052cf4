// ckpt-pack pack and unpack.

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "ckpt_pack/commands.h"
#include "cli/run_plan.h"
#include "codec/frame.h"
#include "exec/frame_cuts.h"
#include "pack/plan_pack.h"
#include "report/report.h"

namespace dsckpt::pack {
namespace {

struct Arguments {
  std::string input;
  std::string output;
  int level = kDefaultPackLevel;
  bool sha256 = false;
  bool dry_run = false;
  RunOptions run;
};

nlohmann::json json_of(const PackPlan& plan) {
  nlohmann::json data = {{"files", nlohmann::json::array()}, {"notes", plan.notes}};
  for (const PlannedFile& file : plan.plan.outputs()) {
    data["files"].push_back(
        {{"path", file.path}, {"bytes", file.size}, {"packed", is_packable(file.path)}});
  }
  data["bytes"] = plan.plan.bytes_written();
  return data;
}

std::string text_of(const PackPlan& plan, bool packs) {
  std::string out;
  for (const PlannedFile& file : plan.plan.outputs()) {
    out += printable(file.path) + "\t" + human_bytes(file.size);
    out += packs && is_packable(file.path) ? "\tto be packed\n" : "\n";
  }
  out += std::to_string(plan.plan.outputs().size()) + " files, " +
         human_bytes(plan.plan.bytes_written()) + " unpacked\n";
  return out;
}

uint64_t stored_bytes(const PackPlan& plan, const InputFiles& inputs) {
  uint64_t sum = 0;
  for (const FileId id : plan.inputs) sum += inputs[id].stored_size();
  return sum;
}

int run(const CLI::App& app, const cli::Common& common, Arguments& args, bool packs) {
  check_pack_place(args.input, args.output);
  Progress progress;
  const cli::InterruptGuard guard(progress);
  InputFiles inputs;
  const PackPlan plan = packs ? plan_pack(inputs, args.input) : plan_unpack(inputs, args.input);
  for (const std::string& text : plan.notes) cli::note(app, common, text);
  args.run.threads = common.threads;
  if (packs) args.run.pack = args.level;
  const size_t count = plan.plan.outputs().size();
  return cli::show_or_run(app, common, args.dry_run, progress,
                          {.source = nullptr,
                           .output = args.output,
                           .what = std::to_string(count) + (count == 1 ? " file" : " files") +
                                   (packs ? "" : " of " + human_bytes(stored_bytes(plan, inputs))),
                           .json = [&] { return json_of(plan); },
                           .text = [&] { return text_of(plan, packs); },
                           .run =
                               [&] {
                                 if (args.sha256) {
                                   auto digests = sha256_of(plan, inputs, progress, common.threads);
                                   if (packs) {
                                     args.run.sha256 = std::move(digests);
                                   } else {
                                     check_sha256(plan, inputs, digests);
                                   }
                                 }
                                 return run_pack(plan, inputs, args.output, progress, args.run);
                               }});
}

Command add(CLI::App& app, cli::Common& common, bool packs) {
  CLI::App& sub = packs ? *app.add_subcommand("pack", "Pack the files of tensors, losslessly")
                        : *app.add_subcommand("unpack", "The files as they were, byte for byte");
  const auto args = std::make_shared<Arguments>();
  sub.add_option("input", args->input,
                 packs ? "Checkpoint, or any folder or file" : "What ckpt-pack or zstd has made")
      ->type_name("PATH")
      ->required();
  sub.add_option("output", args->output, "Folder for the result, which is made as a whole")
      ->type_name("DIR")
      ->required();
  if (packs) {
    sub.add_option("--level", args->level,
                   "zstd's level for what repeats; what does not is coded the same at all levels")
        ->type_name("N")
        ->check(CLI::Range(kLowestPackLevel, kHighestPackLevel))
        ->capture_default_str();
  }
  sub.add_flag("--sha256", args->sha256,
               packs ? "Keep the SHA-256 of each file, too, which takes a pass of its own"
                     : "Compare with the SHA-256 that pack --sha256 has kept");
  cli::add_output_options(sub, args->run, args->dry_run, "Replace the output folder");
  if (packs) {
    sub.add_flag("--verify", args->run.verify,
                 "Check the CRC32 of every record, also of those that hold no tensor");
  }
  cli::add_pass_options(sub, common);
  return {&sub, [&app, &common, args, packs] { return run(app, common, *args, packs); }};
}

}  // namespace

Command add_pack(CLI::App& app, cli::Common& common) {
  return add(app, common, true);
}

Command add_unpack(CLI::App& app, cli::Common& common) {
  return add(app, common, false);
}

}  // namespace dsckpt::pack
