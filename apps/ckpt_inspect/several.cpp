#include "ckpt_inspect/several.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <system_error>

#include "base/text.h"
#include "checkpoint/find/all_checkpoints.h"
#include "cli/terminal.h"
#include "dsckpt/error.h"
#include "io/far_files.h"

namespace dsckpt::inspect {
namespace {

constexpr const char* kEveryTag = "all";

bool means_every_tag(const std::filesystem::path& path, const std::string& tag) {
  std::error_code failed;
  return tag == kEveryTag && std::filesystem::is_directory(path, failed) &&
         !std::filesystem::is_directory(path / kEveryTag, failed);
}

}  // namespace

std::vector<OneOfSeveral> each_of(const std::vector<std::string>& paths, const std::string& tag,
                                  const std::string& model) {
  std::vector<OneOfSeveral> all;
  for (const std::string& path : paths) {
    if (!means_every_tag(path, tag)) {
      all.push_back({path, tag, model, path});
      continue;
    }
    try {
      for (const NamedCheckpoint& each : all_checkpoints(path, model)) {
        const std::string name = paths.size() == 1 ? each.name : path + ": " + each.name;
        all.push_back({each.path.string(), each.tag, each.model, name});
      }
    } catch (const Error& error) {
      all.push_back({path, tag, model, path, error});
    }
  }
  return all;
}

int for_each_path(const CLI::App& app, const cli::Common& common,
                  const std::vector<OneOfSeveral>& all,
                  const std::function<int(const OneOfSeveral&)>& examine) {
  const auto examined = [&](const OneOfSeveral& each) {
    if (each.error) each.error->raise();
    return examine(each);
  };
  if (all.size() == 1) return examined(all.front());
  int status = cli::kDone;
  for (const OneOfSeveral& each : all) {
    const bool only_plans = common.step == cli::ReadingStep::plan;
    if (!common.json && !only_plans) {
      std::cout << (&each == &all.front() ? "" : "\n")
                << cli::styled(cli::Terminal::of_stdout(), cli::Style::bold,
                               printable(shown_text(each.name)) + ":")
                << "\n";
    }
    try {
      status = std::max(status, examined(each));
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::interrupted) throw;
      if (only_plans) continue;  // the last step says it
      std::cout.flush();
      status = std::max(status, cli::report_error(app, common.json, error, each.path));
    }
  }
  return status;
}

}  // namespace dsckpt::inspect
