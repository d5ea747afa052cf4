#include "ckpt_inspect/html.h"

#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "ckpt_inspect/commands.h"
#include "cli/option_facts.h"
#include "inspect/tensor_stats.h"
#include "io/text_file.h"
#include "report/html/page.h"
#include "report/html/text.h"
#include "report/report.h"

namespace dsckpt::inspect {
namespace {

std::string type_text(const NamedTensor& tensor) {
  return std::string(torch_name(tensor.value.dtype())) + " " + to_text(tensor.value.shape());
}

// Returns the weights without states and aliases, the largest first.
std::vector<NamedTensor> by_size(const Contents& contents) {
  std::vector<NamedTensor> tensors;
  for (const NamedTensor& tensor : contents.tensors()) {
    if (tensor.state.empty() && tensor.alias_of.empty()) tensors.push_back(tensor);
  }
  std::stable_sort(tensors.begin(), tensors.end(), [](const NamedTensor& a, const NamedTensor& b) {
    return a.value.nbytes() > b.value.nbytes();
  });
  return tensors;
}

HtmlReport::ShardMap shard_map(const Findings& findings, const NamedTensor& tensor) {
  HtmlReport::ShardMap map{tensor.label(), type_text(tensor), tensor.value.numel(), {}};
  for (TensorExtent& extent : extents_of(findings.inputs, findings.contents, tensor.value)) {
    const std::string& path = findings.inputs[extent.file].display();
    map.extents.push_back({std::filesystem::path(path).filename().string(), std::move(extent)});
  }
  return map;
}

void add_maps(HtmlReport& report, const Findings& findings, const HtmlOptions& options) {
  for (const std::string& name : options.params) {
    report.maps.push_back(shard_map(findings, tensor_named(findings.contents, name, "")));
  }
  if (!options.params.empty()) return;
  const std::vector<NamedTensor> tensors = by_size(findings.contents);
  if (!tensors.empty()) report.maps.push_back(shard_map(findings, tensors.front()));
}

// Adds the distributions of all tensors by kind, and of single tensors: those of --param, or all.
void add_values(HtmlReport& report, const Findings& findings, const HtmlOptions& options,
                const cli::Common& common) {
  std::vector<NamedTensor> tensors = by_size(findings.contents);
  const size_t shown = tensors.size();
  for (const NamedTensor& tensor : findings.contents.tensors()) {
    if (!tensor.state.empty() && tensor.alias_of.empty()) tensors.push_back(tensor);
  }
  Progress progress;
  const cli::InterruptGuard guard(progress);
  const cli::ProgressDisplay display(progress, common);
  const TensorStats stats =
      tensor_stats(findings.inputs, tensors, {.histogram = true}, {common.threads, progress});
  for (const TensorStats::Total& total : stats.totals) {
    report.totals.push_back({total.state.empty() ? "weights" : total.state,
                             grouped_count(total.values.count, "value") + " in " +
                                 grouped_count(total.tensors, "tensor"),
                             total.values});
  }
  for (size_t i = 0; i < shown; ++i) {
    const bool chosen = options.params.empty() ||
                        std::find(options.params.begin(), options.params.end(), tensors[i].name) !=
                            options.params.end();
    if (chosen)
      report.tensors.push_back({tensors[i].name, type_text(tensors[i]), stats.tensors[i]});
  }
}

std::string short_count(int64_t count) {
  const std::string text = human_bytes(static_cast<uint64_t>(count));  // "1.24 GB"
  const std::string unit = text.substr(text.find(' ') + 1);
  const std::string number = text.substr(0, text.find(' '));
  if (unit == "B") return number;
  return number + (unit == "KB" ? " K" : unit == "MB" ? " M" : unit == "GB" ? " B" : " T");
}

std::vector<HtmlReport::Fact> headline(const Findings& findings) {
  const Summary& summary = findings.summary;
  std::vector<HtmlReport::Fact> facts{{"Parameters", short_count(summary.parameters())},
                                      {"On disk", human_bytes(summary.bytes)},
                                      {"Files", grouped(summary.files)}};
  if (summary.ranks.size() > 1) facts.push_back({"Ranks", grouped(summary.ranks.size())});
  const Checkpoint* checkpoint = findings.contents.checkpoint();
  if (checkpoint && checkpoint->facts().global_steps) {
    facts.push_back({"Step", std::to_string(*checkpoint->facts().global_steps)});
  }
  return facts;
}

}  // namespace

void add_html_options(CLI::App& app, HtmlOptions& options) {
  CLI::Option* html =
      cli::some_path(
          app.add_option("--html", options.file, "Write it as a page for a browser, in one file"))
          ->type_name("REPORT");
  app.add_flag("--force", options.force, "Replace REPORT if it exists")->needs(html);
  app.add_flag("--values", options.values,
               "Read all tensors, and show in REPORT how their values are distributed")
      ->needs(html);
  app.add_option("--param", options.params,
                 "Show in REPORT which file holds which part of this tensor (default: of the "
                 "largest); may be repeated")
      ->needs(html)
      ->allow_extra_args(false)
      ->type_name("NAME");
}

void check_page(const std::string& file, bool force) {
  std::error_code ignored;
  const auto status = std::filesystem::symlink_status(file, ignored);
  if (std::filesystem::is_directory(file, ignored)) throw UsageError(file + ": is a folder");
  if (std::filesystem::exists(status) && !force) {
    throw UsageError(file + ": exists already").with_hint("--force replaces it");
  }
}

void write_page(const std::string& file, const std::string& text) {
  const cli::Writing writing;
  replace_text_file(file, text, false);
}

void write_html(const Findings& findings, const HtmlOptions& options, const cli::Common& common) {
  check_page(options.file, options.force);
  HtmlReport report;
  report.title = findings.path;
  report.subtitle =
      findings.contents.form() + (findings.contents.checkpoint() ? " checkpoint" : " weights");
  report.headline = headline(findings);
  for (const auto& [label, text] : findings.facts) report.facts.push_back({label, text});
  if (findings.contents.damage() != nullptr) {
    report.subtitle += findings.contents.damage()->is_damage() ? ", damaged" : ", read in part";
    report.notes = damage_lines(findings.contents);
    for (const LostFile& lost : findings.contents.checkpoint()->lost_files()) {
      report.notes.push_back("lost: " + lost.display + ": " + lost.why);
    }
    report.notes.push_back(findings.contents.damage()->hint());
  }
  for (const std::string& note : findings.contents.notes()) report.notes.push_back(note);
  for (std::string& note : report.notes) std::replace(note.begin(), note.end(), '\n', ' ');
  report.kinds = findings.summary.kinds;
  report.ranks = findings.summary.ranks;
  report.grid = findings.summary.grid;
  const std::vector<NamedTensor> tensors = by_size(findings.contents);
  report.modules = tree_of(tensors, true);
  report.hardware = findings.hardware;
  report.estimates = findings.estimates;
  report.conversions = findings.conversions;
  add_maps(report, findings, options);
  if (options.values) add_values(report, findings, options, common);
  write_page(options.file, html_of(report));
}

}  // namespace dsckpt::inspect
