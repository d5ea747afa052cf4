#include "cli/every_tag.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/text.h"
#include "checkpoint/find/all_checkpoints.h"
#include "cli/carry_out.h"
#include "cli/cli.h"
#include "cli/interrupt.h"
#include "cli/messages.h"
#include "cli/progress_display.h"
#include "cli/ranks.h"
#include "cli/steps.h"
#include "dsckpt/error.h"

namespace dsckpt::cli {
namespace {

constexpr const char* kAll = "all";

// Returns whether the error concerns this checkpoint, so that the next one may succeed.
bool is_of_checkpoint(ErrorKind kind) {
  return kind == ErrorKind::corrupt || kind == ErrorKind::inconsistent ||
         kind == ErrorKind::unsupported;
}

}  // namespace

int for_each_tag(const CLI::App& app, const Common& common, std::string& input,
                 SourceOptions& source, std::string& output, const RunArguments& run,
                 const std::function<int()>& convert) {
  namespace fs = std::filesystem;
  if (common.is_later_share) return work_on_share(app, common, output, run);
  const NodeFolders folders(common, input, source.roots);
  std::error_code failed;
  if (source.tag != kAll || fs::is_directory(fs::path(input) / kAll, failed)) return convert();
  if (output.empty()) throw UsageError("--tag all needs a folder for the output");
  if (run.steps.any()) {
    throw UsageError("--tag all runs several conversions, but steps are for a single one")
        .with_hint("plan each tag by itself, with --tag TAG and an output of its own");
  }
  const fs::path folder = output;
  const std::vector<NamedCheckpoint> all = all_checkpoints(input, source.model);
  int status = kDone;
  size_t bad = 0;
  std::optional<Error> first;
  for (const NamedCheckpoint& each : all) {
    input = each.path.string();
    source.tag = each.tag;
    source.model = each.model;
    output = (folder / each.name).string();
    try {
      status = std::max(status, convert());
    } catch (const Error& error) {
      if (!is_of_checkpoint(error.kind())) throw;
      note(app, common, each.name + " is not converted: " + error.what());
      if (!first) first = error;
      ++bad;
    }
  }
  if (!first) return status;
  Error(*first, first->message() + " (" + std::to_string(bad) + " of " +
                    counted(all.size(), "checkpoint") + " not converted)")
      .raise();
}

int convert_each_tag(const CLI::App& app, const Common& common, std::string& input,
                     SourceOptions& source, std::string& output, const RunArguments& run,
                     const std::function<Job(const Source&)>& plan) {
  return for_each_tag(app, common, input, source, output, run, [&] {
    Progress progress;
    const InterruptGuard guard(progress);
    source.progress = &progress;
    const Job job =
        while_shown(progress, common, [&] { return plan(Source::open(input, source)); });
    return carry_out(app, common, job, output, run, progress);
  });
}

}  // namespace dsckpt::cli
