#include "cli/carry_out.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/text.h"
#include "cli/messages.h"
#include "cli/steps.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "io/far_files.h"
#include "job/job_impl.h"
#include "job/run_job.h"
#include "report/forecast.h"
#include "report/report.h"

namespace dsckpt::cli {
namespace {

std::string packed_text(const RunStats& stats) {
  if (stats.bytes_stored == stats.bytes_written) return "";
  return " packed to " + human_bytes(stats.bytes_stored) + " (" +
         human_percent(static_cast<double>(stats.bytes_stored) /
                       static_cast<double>(std::max<uint64_t>(stats.bytes_written, 1))) +
         ")";
}

std::string checks_text(const RunStats& stats) {
  if (!stats.has_checksums) return "the input has no checksums";
  std::string text = counted(stats.records_checked, "checksum") + " verified";
  if (stats.records_checked + stats.records_unchecked == 0 && stats.bytes_read > 0) {
    text = "the packed input's checksums verified";
  }
  if (stats.bytes_without_checksum > 0) {
    text += ", " + human_bytes(stats.bytes_without_checksum) + " without any";
  }
  if (stats.records_unchecked == 0) return text;
  return text + ", " + std::to_string(stats.records_unchecked) +
         " not, since only little of their records was read (--verify)";
}

std::string read_back_text(const RunStats& stats) {
  if (stats.bytes_verified == 0) return "";
  return ", " + human_bytes(stats.bytes_verified) + " read back";
}

std::string kept_text(const RunStats& stats) {
  if (stats.bytes_kept == 0) return "";
  return ", " + human_bytes(stats.bytes_kept) + " of it by the previous run";
}

std::string table_of(const Listing& listing) {
  std::vector<Table::Column> columns;
  for (const Listing::Column& column : listing.columns) {
    columns.push_back({column.heading, column.is_number ? Table::Align::right : Table::Align::left,
                       column.shrinks});
  }
  Table table(std::move(columns));
  for (const std::vector<std::string>& row : listing.rows) table.add(row);
  return table.text(Terminal::of_stdout());
}

std::string lines_of(const Listing& listing) {
  std::string text;
  for (const std::vector<std::string>& row : listing.rows) {
    for (size_t i = 0; i < row.size(); ++i) text += (i == 0 ? "" : "\t") + row[i];
    text += "\n";
  }
  return text;
}

void say_before(const CLI::App& app, const Common& common, const Job& job) {
  notes(app, common, job.notes());
  if (common.json) return;
  std::cout << job->report->preface();
  for (const std::string& line : job.left_out()) std::cout << line << "\n";
}

std::string shown(const Listing& listing) {
  std::string text = listing.columns.empty() ? lines_of(listing) : table_of(listing);
  for (const std::string& line : listing.below) text += line + "\n";
  return text;
}

void show(const Common& common, const Job& job, const std::filesystem::path& output,
          const RunArguments& run, const RunOptions& options) {
  std::optional<ShareForecast> shares;
  if (run.ranks > 0) {
    shares = forecast(job, output, options, run.ranks);
    shares->disk_rate = run.disk_rate;
  }
  if (common.json) {
    nlohmann::json data = job_json(*job);
    if (shares) data["forecast"] = forecast_json(*shares);
    if (const auto far = far_forecast(job, output, options)) {
      data["transfers"] = {{"requests_to_read", far->requests_to_read},
                           {"bytes_to_read", far->bytes_to_read},
                           {"requests_to_write", far->requests_to_write},
                           {"bytes_to_write", far->bytes_to_write}};
    }
    print_json("plan", std::move(data));
    return;
  }
  std::cout << text_of(job);
  if (shares) std::cout << "\n" << shown(forecast_listing(*shares));
}

// Shows the plan, and throws the error that the run would throw. Missing space is only a note,
// which is part of the object in JSON.
void show_and_check(const CLI::App& app, const Common& common, const Job& job,
                    const std::filesystem::path& output, const RunArguments& run,
                    const RunOptions& options) {
  std::optional<Error> refusal;
  std::string lack;
  try {
    lack = check_run(job, output, options);
  } catch (const Error& error) {
    refusal = error;
  }
  const auto note_lack = [&] {
    if (!lack.empty()) note(app, common, "the run would be refused: " + lack);
  };
  if (common.json) note_lack();
  show(common, job, output, run, options);
  if (!common.json) note_lack();
  if (refusal) refusal->raise();
}

void note_transfers(const CLI::App& app, const Common& common,
                    const std::optional<FarForecast>& far) {
  if (!far || common.json) return;
  std::string text;
  if (far->requests_to_read > 0) {
    text = "about " + grouped_count(far->requests_to_read, "request") + " to read " +
           human_bytes(far->bytes_to_read);
  }
  if (far->requests_to_write > 0) {
    text += (text.empty() ? "" : ", and ") + ("about " + grouped(far->requests_to_write)) +
            " to write " + human_bytes(far->bytes_to_write);
  }
  note(app, common, "the run would take " + text);
}

// Returns the user's next step. Files that were packed must be unpacked first.
std::string next_of(const Job& job, const std::filesystem::path& output, const RunStats& stats) {
  if (far_place(std::filesystem::absolute(output))) return "";
  const std::string next = job->report->next(*job, output);
  const bool is_packed = stats.bytes_stored != stats.bytes_written;
  if (next.empty() || !is_packed || next.starts_with("ckpt-pack")) return next;
  return "ckpt-pack unpack " + shell_word(output.string()) + " FOLDER";
}

void say_after(const CLI::App& app, const Common& common, const Job& job,
               const std::filesystem::path& output, const RunStats& stats) {
  notes(app, common, job->report->notes_after(*job, output));
  notes(app, common, stats.notes);
  const std::string next = next_of(job, output, stats);
  if (common.json) {
    nlohmann::json data = job_json(*job);
    if (!next.empty()) data["next"] = next;
    print_json("done", done_json(std::move(data), output.string(), stats));
  } else if (!common.quiet) {
    std::cerr << app.get_name() << ": " << job->what << ", " << human_bytes(stats.bytes_written)
              << packed_text(stats) << " in " << shown_path(output) << kept_text(stats) << ", "
              << human_seconds(stats.seconds) << ", " << checks_text(stats) << read_back_text(stats)
              << "\n";
    if (!next.empty()) std::cerr << app.get_name() << ": next: " << printable(next) << "\n";
  }
  // The output is complete even if the message cannot be printed.
  try {
    flush_stdout();
  } catch (const IoError& error) {
    note(app, common, std::string(error.what()) + "; the output is complete");
    forget_stdout();
  }
}

// Returns nullopt if another process has committed the plan.
std::optional<RunStats> run_job(const CLI::App& app, const Common& common, const Job& job,
                                const std::filesystem::path& output, const RunArguments& run,
                                const RunOptions& options, Progress& progress) {
  const std::string& planned_in = run.steps.planned_in;
  if (run.steps.share) plan_and_work(app, common, job, output, run, progress);
  // A commit to a store keeps its own work only as a worker's. Portions that fail are left to it.
  if (run.steps.commits && !planned_in.empty()) {
    try {
      work_on_planned(common, planned_in, {}, progress);
    } catch (const IoError&) {
    }
  }
  progress.bytes_done = 0;
  const ProgressDisplay display(progress, common);
  const Writing writing;
  if (progress.cancelled) throw InterruptedError();
  if (run.steps.any()) return commit_planned(job, output, options, planned_in, progress);
  if (common.ranks == nullptr) return dsckpt::run(job, output, options, progress);
  const OtherRanks others{*common.ranks, planned_by(app)};
  return dsckpt::run(job, output, options, progress, &others);
}

void say_was_committed(const CLI::App& app, const Common& common,
                       const std::filesystem::path& output) {
  if (common.json) {
    print_json("committed", {{"output", shown_path(output)}});
  } else if (!common.quiet) {
    std::cerr << app.get_name() << ": " << shown_path(output)
              << " was committed before: nothing is left to do\n";
  }
}

}  // namespace

std::string text_of(const Job& job) {
  return shown(job->report->listing(*job));
}

int carry_out(const CLI::App& app, const Common& common, const Job& job,
              const std::filesystem::path& output, const RunArguments& given, Progress& progress) {
  RunArguments run = given;
  // In a store a plan keeps the progress: this process does all of its steps.
  if (run.options.resume && is_far(output) && common.ranks == nullptr) {
    run.options.resume = false;
    if (!run.steps.any()) run.steps.share.emplace();
  }
  if (!run.steps.planned_in.empty() && !run.steps.any()) {
    throw UsageError("--plan-in goes with --emit-plan, --share, or --resume into a store")
        .with_hint(
            "add --emit-plan: then 'dsckpt work DIR' works, and 'dsckpt commit DIR' ends it");
  }
  check_place(job->place, output, run.options.force, run.options.resume || run.steps.any(),
              run.steps.planned_in);
  say_before(app, common, job);
  RunOptions options = run.options;
  if (options.threads == 0) options.threads = common.threads;
  if (run.dry_run) {
    show_and_check(app, common, job, output, run, options);
    note_transfers(app, common, far_forecast(job, output, options));
  } else if (run.steps.plans) {
    return plan_first(app, common, job, output, run, progress);
  } else if (const std::optional<RunStats> stats =
                 run_job(app, common, job, output, run, options, progress)) {
    say_after(app, common, job, output, *stats);
  } else {
    say_was_committed(app, common, output);
  }
  return job.left_out().empty() ? kDone : kCheckFailed;
}

}  // namespace dsckpt::cli
