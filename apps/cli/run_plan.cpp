#include "cli/run_plan.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "report/report.h"

namespace dsckpt::cli {
namespace {

std::string packed_text(const ExecStats& stats) {
  if (stats.bytes_stored == stats.bytes_written) return "";
  return " packed to " + human_bytes(stats.bytes_stored) + " (" +
         human_percent(static_cast<double>(stats.bytes_stored) /
                       static_cast<double>(std::max<uint64_t>(stats.bytes_written, 1))) +
         ")";
}

}  // namespace

int show_or_run(const CLI::App& app, const Common& common, bool dry_run, const Progress& progress,
                const PlannedRun& planned) {
  const int code = planned.left_out.empty() ? kDone : kCheckFailed;
  if (!common.json) {
    for (const std::string& line : planned.left_out) std::cout << line << "\n";
  }
  nlohmann::json data;
  if (common.json) {
    data = planned.json();
    if (planned.source != nullptr) data["checkpoint"] = facts_json(*planned.source);
  }
  if (dry_run) {
    if (common.json) {
      print_json("plan", std::move(data));
    } else {
      std::cout << planned.text();
    }
    return code;
  }

  const ExecStats stats = [&] {
    const ProgressDisplay display(progress, common);
    return planned.run();
  }();
  if (planned.notes_after) {
    for (const std::string& text : planned.notes_after()) note(app, common, text);
  }
  if (common.json) {
    print_json("done", done_json(std::move(data), planned.output, stats));
  } else if (!common.quiet) {
    std::cerr << app.get_name() << ": " << planned.what << ", " << human_bytes(stats.bytes_written)
              << packed_text(stats) << " in " << planned.output << ", "
              << human_seconds(stats.seconds) << ", " << stats.records_checked
              << " checksums verified\n";
  }
  return code;
}

}  // namespace dsckpt::cli
