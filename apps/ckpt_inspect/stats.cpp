// ckpt-inspect stats: extremes, mean, deviation, NaNs and infinities of every tensor.

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/text.h"
#include "ckpt_inspect/commands.h"
#include "ckpt_inspect/shown.h"
#include "cli/messages.h"
#include "cli/ranks.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "inspect/tensor_stats.h"
#include "report/report.h"
#include "report/values.h"

namespace dsckpt::inspect {
namespace {

bool is_bad(const Statistics& values) {
  return values.finite() < values.count;
}

constexpr int kDigitsInTables = 3;

// On a terminal, columns that count nothing are left empty, and numbers are short, to make room.
std::vector<std::string> row_of(std::vector<std::string> cells, const Statistics& values) {
  static const bool is_table = cli::Terminal::of_stdout().tables;
  for (auto& [heading, cell] :
       is_table ? statistics_cells(values, kDigitsInTables) : statistics_cells(values)) {
    const bool is_count = heading == "nan" || heading == "inf";
    cells.push_back(is_table && is_count && cell == "0" ? "" : std::move(cell));
  }
  return cells;
}

cli::Style style_of(const Statistics& values) {
  return is_bad(values) ? cli::Style::bad : cli::Style::plain;
}

}  // namespace

Cells statistics_cells(const Statistics& values, int digits) {
  const auto number = [digits](double value) { return short_number(value, digits); };
  return {{"min", number(values.min)},          {"max", number(values.max)},
          {"mean", number(values.mean)},        {"std", number(values.standard_deviation())},
          {"norm", number(values.norm())},      {"zeros", std::to_string(values.zeros)},
          {"nan", std::to_string(values.nans)}, {"inf", std::to_string(values.infinities())}};
}

namespace {

// The numbers that --sort accepts besides the columns of `list`.
using Number = double (*)(const Statistics&);
const std::vector<std::pair<std::string, Number>>& sortable() {
  static const std::vector<std::pair<std::string, Number>> kNumbers = {
      {"min", [](const Statistics& s) { return s.min; }},
      {"max", [](const Statistics& s) { return s.max; }},
      {"mean", [](const Statistics& s) { return s.mean; }},
      {"std", [](const Statistics& s) { return s.standard_deviation(); }},
      {"norm", [](const Statistics& s) { return s.norm(); }},
      {"zeros", [](const Statistics& s) { return static_cast<double>(s.zeros); }},
      {"nan", [](const Statistics& s) { return static_cast<double>(s.nans); }},
      {"inf", [](const Statistics& s) { return static_cast<double>(s.infinities()); }},
  };
  return kNumbers;
}

// Sorts by one of the numbers, the largest first. Tensors without it, with only NaN, come last.
void sort_by_number(const std::string& key, std::vector<NamedTensor>& tensors,
                    std::vector<Statistics>& stats) {
  const auto found = std::find_if(sortable().begin(), sortable().end(),
                                  [&](const auto& number) { return number.first == key; });
  if (found == sortable().end()) return;
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto value = [&](size_t i) {
    const double number = found->second(stats[i]);
    return std::isnan(number) ? -std::numeric_limits<double>::infinity() : number;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return value(a) > value(b); });
  std::vector<NamedTensor> sorted;
  std::vector<Statistics> theirs;
  for (const size_t i : order) {
    sorted.push_back(std::move(tensors[i]));
    theirs.push_back(std::move(stats[i]));
  }
  tensors = std::move(sorted);
  stats = std::move(theirs);
}

void print_table(const std::vector<NamedTensor>& tensors, const TensorStats& stats) {
  std::vector<cli::Table::Column> columns = tensor_columns();
  using Ranked = std::pair<const char*, uint8_t>;
  for (const auto& [heading, rank] : {Ranked{"min", 0},
                                      {"max", 0},
                                      {"mean", 1},
                                      {"std", 0},
                                      {"norm", 0},
                                      {"zeros", 6},
                                      {"nan", 0},
                                      {"inf", 0}}) {
    columns.push_back({heading, cli::Table::Align::right, false, rank});
  }
  cli::Table table(std::move(columns));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Statistics& values = stats.tensors[i];
    table.add(row_of(tensor_cells(tensors[i]), values), style_of(values));
  }
  for (const TensorStats::Total& total : stats.totals) {
    table.add_total(row_of({"total", printable(total.state), counted(total.tensors, "tensor"),
                            "[" + std::to_string(total.values.count) + "]"},
                           total.values),
                    style_of(total.values));
  }
  table.write(std::cout, cli::Terminal::of_stdout());
}

int stats(const CLI::App& app, const cli::Common& common, TensorArguments& args) {
  const cli::NodeFolders folders(common, args.path, args.contents.roots);
  InputFiles inputs;
  const Contents contents = open_contents(inputs, common, args.path, args.contents);
  std::vector<NamedTensor> tensors = selected(contents, args.selection);
  require_match(args.selection, !tensors.empty());
  Progress progress;
  TensorStats result;
  {
    const cli::InterruptGuard guard(progress);
    const cli::ProgressDisplay display(progress, common);
    result = tensor_stats(inputs, tensors, {}, {common.threads, progress, common.readers.get()});
  }
  if (common.step == cli::ReadingStep::plan) return cli::kDone;
  sort_by_number(args.selection.sort, tensors, result.tensors);
  const auto bad = std::count_if(result.tensors.begin(), result.tensors.end(), is_bad);
  if (common.json) {
    nlohmann::json data = stats_json(inputs, contents, tensors, result);
    data["form"] = contents.form();
    data["notes"] = contents.notes();
    data["finite"] = bad == 0;
    cli::print_json("stats", std::move(data));
  } else {
    print_table(tensors, result);
  }
  if (bad == 0) return cli::kDone;
  if (!common.quiet) {
    std::cerr << app.get_name() << ": " << bad << " of " << counted(tensors.size(), "tensor")
              << (bad == 1 ? " has" : " have") << " NaN or infinite elements\n";
  }
  return cli::kCheckFailed;
}

}  // namespace

Command add_stats(CLI::App& app, cli::Common& common) {
  CLI::App& sub = *app.add_subcommand(
      "stats", "Extremes, mean, deviation, norm, zeros, NaN and infinity of each tensor");
  const auto args = std::make_shared<TensorArguments>();
  std::vector<std::string> numbers;
  for (const auto& [key, number] : sortable()) numbers.push_back(key);
  add_tensor_arguments(sub, *args, numbers);
  return cli::command_of_readers(app, sub, common,
                                 [&app, &common, args] { return stats(app, common, *args); });
}

}  // namespace dsckpt::inspect
