// ckpt-inspect: what is in a checkpoint.

#include <re2/re2.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <CLI/Validators.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "cli.h"
#include "report.h"

namespace dsckpt {
namespace {

struct Arguments {
  cli::Common common;
  std::string path;
  OpenOptions open;
  std::string match;
  std::string sort = "order";
};

std::vector<Param> selected(const Checkpoint& checkpoint, const Arguments& args) {
  RE2::Options quiet;
  quiet.set_log_errors(false);
  const RE2 match(args.match, quiet);
  if (!match.ok()) throw UsageError("--match '" + args.match + "': " + match.error());
  std::vector<Param> params;
  for (const Param& param : checkpoint.params()) {
    if (RE2::PartialMatch(param.name, match)) params.push_back(param);
  }
  if (args.sort == "name") {
    std::stable_sort(params.begin(), params.end(),
                     [](const Param& a, const Param& b) { return a.name < b.name; });
  } else if (args.sort == "size") {
    std::stable_sort(params.begin(), params.end(), [](const Param& a, const Param& b) {
      return a.weight.nbytes() > b.weight.nbytes();
    });
  }
  return params;
}

int list(const Arguments& args) {
  InputFiles inputs;
  const Checkpoint checkpoint = Checkpoint::open(inputs, args.path, args.open);
  const std::vector<Param> params = selected(checkpoint, args);
  if (args.common.json) {
    nlohmann::json data = {{"checkpoint", facts_json(checkpoint)},
                           {"tensors", nlohmann::json::array()},
                           {"notes", checkpoint.notes()}};
    for (const Param& param : params) data["tensors"].push_back(param_json(inputs, param));
    cli::print_json("list", std::move(data));
    return cli::kDone;
  }
  std::string out;
  for (const Param& param : params) {
    const std::vector<std::string> files = files_of(inputs, param.weight);
    out += printable(param.name) + "\t" + to_string(param.kind) + "\t" +
           std::string(torch_name(param.weight.dtype())) + "\t" + to_text(param.weight.shape()) +
           "\t" + human_bytes(param.weight.nbytes()) + "\t";
    if (!param.alias_of.empty()) {
      out += "= " + printable(param.alias_of);
    } else if (files.size() == 1) {
      out += files.front();
    } else {
      out += std::to_string(files.size()) + " files";
    }
    out += "\n";
  }
  std::cout << out;
  return cli::kDone;
}

}  // namespace
}  // namespace dsckpt

int main(int argc, char** argv) {
  using namespace dsckpt;
  Arguments args;
  CLI::App app("What is in a DeepSpeed checkpoint.", "ckpt-inspect");
  cli::add_common(app, args.common);
  CLI::App& listing =
      *app.add_subcommand("list", "One line a tensor: name, kind, type, shape, bytes, files");
  cli::add_checkpoint_options(listing, "path", args.path, args.open);
  listing.add_option("--match", args.match, "Only tensors whose name matches")->type_name("REGEX");
  listing.add_option("--sort", args.sort, "By order (of the checkpoint), name or size")
      ->check(CLI::IsMember({"order", "name", "size"}))
      ->option_text("KEY=order");
  listing.add_flag("--json", args.common.json, "Results as JSON on stdout");
  app.require_subcommand(1);
  app.footer(
      cli::footer("  ckpt-inspect list checkpoint-500\n"
                  "  ckpt-inspect list checkpoint-500 --match norm --sort size\n"
                  "  ckpt-inspect list checkpoint-500 --json"));
  return cli::run(app, args.common, argc, argv, [&] { return list(args); });
}
