// to-universal: a DeepSpeed checkpoint converted to a Universal Checkpoint, with the command line
// of ds_to_universal.py.

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "cli/cli.h"
#include "cli/every_tag.h"
#include "cli/far_paths.h"
#include "cli/messages.h"
#include "cli/option_facts.h"
#include "cli/tools.h"
#include "dsckpt/error.h"
#include "dsckpt/universal.h"

namespace dsckpt {
namespace {

constexpr const char* kFolders = "to-universal INPUT OUTPUT, or --input-folder and --output-folder";

struct ToUniversalArguments {
  std::string input;
  std::string output;
  std::array<std::string, 2> folders;  // positional
  SourceOptions source;
  UniversalOptions universal;
  cli::RunArguments run;
  cli::Common common;
  unsigned extract_workers = 0;
  unsigned merge_workers = 0;
  bool no_strict = false;
  bool keep_temp_folder = false;
  bool inject_missing_state = false;
};

void add_options(CLI::App& app, ToUniversalArguments& args) {
  cli::input_path(
      app.add_option(
          "--input-folder", args.input,
          "Checkpoint: the folder that has the file `latest`, or one tag's own folder;\n"
          "or weights to start from: a Hugging Face folder, a .safetensors or .bin file"))
      ->type_name("DIR");
  cli::output_path(
      app.add_option(
          "--output-folder", args.output,
          "Folder for the universal checkpoint; `latest_universal` beside it will name it"))
      ->type_name("DIR");
  cli::input_path(app.add_option("checkpoint", args.folders[0], "In place of --input-folder"))
      ->type_name("DIR");
  cli::output_path(app.add_option("output", args.folders[1], "In place of --output-folder"))
      ->type_name("DIR");
  app.add_option("-t,--tag", args.source.tag,
                 "Tag to read (default: the one in `latest`);\n"
                 "all: every tag, each into a folder of its name")
      ->type_name("TAG");
  cli::add_param_names(app, args.source.param_names);
  cli::add_model(app, args.source.model);
  cli::add_roots(app, args.source.roots);
  app.add_flag("--no-strict", args.no_strict,
               "Patterns of universal_checkpoint_info that fit no parameter are no error");
  app.add_option("--num-extract-workers", args.extract_workers,
                 "The larger of the two is the number of threads, if --threads is not given")
      ->type_name("N");
  app.add_option("--num-merge-workers", args.merge_workers, "See --num-extract-workers")
      ->type_name("N");
  app.add_flag("--keep-temp-folder", args.keep_temp_folder,
               "Accepted without effect: there is no temporary folder");
  app.add_flag(
      "--inject-missing-state", args.inject_missing_state,
      "Accepted and without effect: a universal_checkpoint_info that is not needed is not\n"
      "missed, one that is needed cannot be made up");

  cli::input_path(
      app.add_option(
          "--like", args.source.like,
          "For weights: a checkpoint of the run that starts from them, with its trained,\n"
          "frozen and tied parameters and the optimizer's states"))
      ->type_name("CHECKPOINT");
  cli::add_weights_options(app, args.source);
  cli::add_key_map(app, args.source.key_map);

  cli::add_run_options(app, args.common, args.run,
                       "Replace a universal checkpoint that is in the output folder");
  cli::add_common(app, args.common);
  cli::set_examples(
      app,
      {.commands = {"to-universal --input_folder ckpt/global_step5 --output_folder ckpt/universal5",
                    "to-universal ckpt ckpt/universal",
                    "to-universal --input-folder ckpt --output-folder ckpt/universal --dry-run",
                    "to-universal --input-folder Llama-3-8B --output-folder start/universal"},
       .remarks = {
           "Then set \"checkpoint\": {\"load_universal\": true} in DeepSpeed's configuration",
           "and load ckpt."}});
}

// Sets the input and output that have no option from the positional arguments.
void fill_folders(ToUniversalArguments& args) {
  auto next = args.folders.begin();
  for (std::string* folder : {&args.input, &args.output}) {
    if (folder->empty() && next != args.folders.end()) *folder = std::move(*next++);
  }
  if (next != args.folders.end() && !next->empty()) {
    throw UsageError("'" + *next + "' is one folder too many");
  }
  if (args.input.empty()) throw UsageError("--input-folder is required").with_hint(kFolders);
  if (args.output.empty()) throw UsageError("--output-folder is required").with_hint(kFolders);
}

int convert(const CLI::App& app, ToUniversalArguments& args) {
  fill_folders(args);
  args.source.optimizer_states = true;
  args.source.module_names = true;
  args.universal.strict = !args.no_strict;
  if (args.common.threads == 0) {
    args.common.threads = std::max(args.extract_workers, args.merge_workers);
  }
  if (args.keep_temp_folder) cli::note(app, args.common, "there is no temporary folder to keep");

  return cli::convert_each_tag(app, args.common, args.input, args.source, args.output, args.run,
                               [&](const Source& source) {
                                 args.universal.output = args.output;
                                 return plan_universal(source, args.universal);
                               });
}

}  // namespace

constexpr cli::Tool kToUniversal{
    "to-universal",
    "A DeepSpeed ZeRO checkpoint as a Universal Checkpoint, for another number of GPUs.",
    cli::run_tool<ToUniversalArguments, add_options, convert>};

}  // namespace dsckpt
