// ckpt-inspect verify: all defects of a checkpoint.

#include "inspect/verify/verify.h"

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "base/text.h"
#include "ckpt_inspect/commands.h"
#include "ckpt_inspect/several.h"
#include "cli/messages.h"
#include "cli/option_facts.h"
#include "cli/ranks.h"
#include "cli/terminal.h"
#include "io/text_file.h"
#include "report/report.h"

namespace dsckpt::inspect {
namespace {

struct VerifyArguments {
  std::vector<std::string> paths;
  ContentsOptions contents;
  VerifyOptions verify;
  std::string manifest;
  std::string new_manifest;
  bool force = false;
};

// "global_step4/zero_pp_rank_1_....pt: data/3: layers.0.weight: at 4096".
std::string place_of(const Finding& finding) {
  std::string place = printable(finding.file);
  const auto add = [&](const std::string& part) {
    if (!part.empty()) place += (place.empty() ? "" : ": ") + part;
  };
  add(printable(finding.member));
  add(printable(finding.tensor + (finding.state.empty() ? "" : " " + finding.state)));
  if (finding.offset) add("at " + std::to_string(*finding.offset));
  return place;
}

void print_text(const cli::Common& common, const VerifyReport& report) {
  const cli::Terminal terminal = cli::Terminal::of_stdout();
  for (const Finding& finding : report.findings) {
    const std::string place = place_of(finding);
    std::cout << cli::styled(terminal, cli::Style::bad, to_string(finding.check)) << "  " << place
              << (place.empty() ? "" : ": ") << printable(finding.message)
              << (finding.tensors.empty() ? "" : "; in it " + printable(some_of(finding.tensors)))
              << "\n";
  }
  if (common.quiet) return;
  const std::string looked_at = counted(report.files, "file") + ", " +
                                counted(report.records, "record") + ", " +
                                human_bytes(report.bytes) + " checked";
  if (report.ok()) {
    std::cout << cli::styled(terminal, cli::Style::good, "whole") << ": " << looked_at << "\n";
  } else {
    std::cout << counted(report.findings.size(), "finding") << ": " << looked_at << "\n";
  }
}

// Writes no manifest for a damaged checkpoint, which would declare it whole.
void write(const cli::Common& common, const CLI::App& app, const VerifyArguments& args,
           const VerifyReport& report) {
  if (args.new_manifest.empty()) return;
  if (report.ok()) {
    // A commit may have written it before.
    if (common.step == cli::ReadingStep::commit &&
        holds_text(args.new_manifest, manifest_text(*report.manifest))) {
      return;
    }
    const cli::Writing writing;
    return write_manifest(*report.manifest, args.new_manifest, args.force);
  }
  cli::note(app, common, "a damaged checkpoint gets no manifest");
}

int verify_path(const CLI::App& app, const cli::Common& common, const VerifyArguments& args,
                const OneOfSeveral& each) {
  std::string path = each.path;
  std::vector<std::filesystem::path> roots = args.contents.roots;
  const cli::NodeFolders folders(common, path, roots);
  std::error_code failed;
  if (common.step != cli::ReadingStep::commit && !args.force && !args.new_manifest.empty() &&
      std::filesystem::exists(args.new_manifest, failed)) {
    throw UsageError(args.new_manifest + ": already exists; --force replaces it");
  }
  if (!args.manifest.empty() && !std::filesystem::exists(args.manifest, failed)) {
    throw UsageError("--manifest: " + args.manifest + " is not there")
        .with_hint("--write-manifest " + shell_word(args.manifest) +
                   " writes it for an undamaged checkpoint");
  }
  if (!roots.empty() && !(args.manifest + args.new_manifest).empty()) {
    throw UsageError("a manifest is for one folder, not for several roots")
        .with_hint("make or check one for each root");
  }
  VerifyOptions options = args.verify;
  options.roots = roots;
  options.model = each.model;
  options.tag = each.tag;
  options.tp_rules = args.contents.tp_rules;
  options.threads = common.threads;
  options.readers = common.readers.get();
  options.manifest = args.manifest;
  options.new_manifest = args.new_manifest;
  InputFiles inputs;
  Progress progress;
  VerifyReport report;
  {
    const cli::InterruptGuard guard(progress);
    const cli::ProgressDisplay display(progress, common);
    report = verify(inputs, path, options, progress);
  }
  if (common.step == cli::ReadingStep::plan) return cli::kDone;
  write(common, app, args, report);
  if (!report.choice.empty()) cli::note(app, common, report.choice);
  if (common.json) {
    nlohmann::json data = verify_json(report);
    data["path"] = each.path;
    if (!each.tag.empty()) data["tag"] = each.tag;
    cli::print_json("verify", std::move(data));
  } else {
    print_text(common, report);
    std::set<std::string> said;
    for (const CheckDone& check : report.checks) {
      if (check.done && !check.why.empty() && said.insert(check.why).second) {
        cli::note(app, common, "not checked: " + check.why);
      }
    }
  }
  return report.ok() ? cli::kDone : cli::kCheckFailed;
}

int verify_paths(const CLI::App& app, const cli::Common& common, const VerifyArguments& args) {
  const std::vector<OneOfSeveral> all = each_of(args.paths, args.contents.tag, args.contents.model);
  if (all.size() > 1 && !(args.manifest + args.new_manifest).empty()) {
    throw UsageError("a manifest is for one checkpoint, not for several")
        .with_hint("make or check one for each");
  }
  if (args.paths.size() > 1 && !args.contents.roots.empty()) {
    throw UsageError("--root is another place of one checkpoint, not of several");
  }
  return for_each_path(app, common, all, [&](const OneOfSeveral& each) {
    return verify_path(app, common, args, each);
  });
}

}  // namespace

Command add_verify(CLI::App& app, cli::Common& common) {
  CLI::App& sub = *app.add_subcommand(
      "verify", "Everything that is wrong: missing, damaged, stale or unequal files and values");
  const auto args = std::make_shared<VerifyArguments>();
  add_contents_options(sub, "path", args->paths, args->contents);
  sub.add_flag("--finite", args->verify.finite, "No weight or state may be NaN or Inf");
  cli::some_path(sub.add_option("--manifest", args->manifest,
                                "Compare all records and files with this manifest"))
      ->type_name("FILE");
  cli::some_path(sub.add_option("--write-manifest", args->new_manifest,
                                "Write SHA-256 of all records and files, unless a check fails"))
      ->type_name("FILE");
  sub.add_flag("--force", args->force, "Replace the manifest that is there");
  return cli::command_of_readers(
      app, sub, common, [&app, &common, args] { return verify_paths(app, common, *args); });
}

}  // namespace dsckpt::inspect
