// ckpt-inspect PATH: a summary in one screen.

#include "inspect/summary.h"

#include <CLI/App.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "checkpoint/find/all_checkpoints.h"
#include "checkpoint/find/choose.h"
#include "ckpt_inspect/commands.h"
#include "ckpt_inspect/html.h"
#include "ckpt_inspect/shown.h"
#include "cli/messages.h"
#include "cli/option_facts.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "deepspeed/shard_name.h"
#include "inspect/shard_list.h"
#include "job/source.h"
#include "report/conversions.h"
#include "report/report.h"

namespace dsckpt::inspect {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kGpusOfANode = 8;
constexpr size_t kMostRanksShown = 16;

struct SummaryArguments {
  std::string path;
  ContentsOptions contents{
      .tag = {}, .states = true, .damaged = true, .folders = std::make_shared<Folders>()};
  uint64_t gpus = 0;  // 0: as many as in the run
  uint64_t gpus_per_node = 0;
  uint64_t gpu_memory = 0;  // bytes; 0: unknown
  HtmlOptions html;
};

Hardware hardware_of(const Contents& contents, const SummaryArguments& args) {
  uint64_t gpus = args.gpus;
  if (gpus == 0 && contents.checkpoint()) {
    const Mesh& mesh = contents.checkpoint()->facts().mesh;
    gpus = uint64_t{mesh.pp} * mesh.tp * mesh.dp;
  }
  gpus = std::max<uint64_t>(gpus, 1);
  uint64_t per_node = args.gpus_per_node;
  if (per_node == 0) {
    per_node = std::min(gpus, kGpusOfANode);
    while (gpus % per_node != 0) --per_node;
  }
  if (gpus % per_node != 0) {
    throw UsageError(counted(gpus, "GPU") + " cannot make whole nodes of " +
                     std::to_string(per_node) + "; see --gpus and --gpus-per-node");
  }
  return {gpus / per_node, per_node};
}

class Page {
 public:
  Page() : terminal_(cli::Terminal::of_stdout()) {}

  void fact(const std::string& label, const std::string& text) { facts_.push_back({label, text}); }

  void heading(const std::string& text) {
    flush_facts();
    out_ += "\n";
    const size_t width = terminal_.tables ? terminal_.width : std::string::npos;
    for (const std::string& line : cli::wrapped(text, width)) {
      out_ += styled(terminal_, cli::Style::bold, line) + "\n";
    }
  }

  void table(const cli::Table& table) {
    flush_facts();
    out_ += table.text(terminal_);
  }

  std::string text() {
    flush_facts();
    return std::move(out_);
  }

 private:
  void flush_facts() {
    size_t width = 0;
    for (const auto& [label, text] : facts_) width = std::max(width, label.size());
    for (const auto& [label, text] : facts_) {
      const std::string fill(width + 2 - label.size(), ' ');
      out_ += styled(terminal_, cli::Style::dim, label) + fill + text + "\n";
    }
    facts_.clear();
  }

  cli::Terminal terminal_;
  std::string out_;
  std::vector<std::pair<std::string, std::string>> facts_;
};

std::string percent(uint64_t part, uint64_t whole) {
  const uint64_t tenths = whole == 0 ? 0 : (part * 1000 + whole / 2) / whole;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " %";
}

bool is_compressed(const Summary& summary) {
  return summary.stored != summary.bytes;
}

std::string mesh_text(const Mesh& mesh) {
  return "dp " + std::to_string(mesh.dp) + ", tp " + std::to_string(mesh.tp) + ", pp " +
         std::to_string(mesh.pp) + ", ep " + std::to_string(mesh.ep);
}

std::string counts_text(const Summary& summary) {
  std::string text;
  for (const char* kind : {"trainable", "frozen", "buffer", "tensor"}) {
    const auto found = summary.counts.find(kind);
    if (found == summary.counts.end()) continue;
    const bool told = std::string(kind) != "tensor";
    text += (text.empty() ? "" : ", ") + grouped(static_cast<uint64_t>(found->second.elements)) +
            (told ? " " + std::string(kind) : "") + " in " +
            counted(found->second.tensors, "tensor");
  }
  if (summary.tied > 0) text += ", " + std::to_string(summary.tied) + " tied";
  return text;
}

// Returns a label and a text for each fact.
std::vector<std::pair<std::string, std::string>> facts_of(const Contents& contents,
                                                          const Summary& summary) {
  std::vector<std::pair<std::string, std::string>> all;
  const auto fact = [&](const std::string& label, const std::string& text) {
    if (!text.empty()) all.push_back({label, text});
  };
  fact("layout", contents.form());
  if (const Checkpoint* checkpoint = contents.checkpoint()) {
    const CheckpointFacts& facts = checkpoint->facts();
    // Other frameworks' meshes are unknown.
    if (!facts.is_foreign()) fact("ZeRO stage", std::to_string(facts.zero_stage));
    fact("tag", printable(facts.tag));
    fact("step", facts.global_steps ? std::to_string(*facts.global_steps) : "");
    fact(facts.is_foreign() ? "written by" : "mesh",
         facts.is_foreign() ? counted(facts.mesh.dp, "rank") : mesh_text(facts.mesh));
    fact("DeepSpeed", printable(facts.ds_version));
    fact("wrapper", std::string(to_string(facts.optimizer_wrapper)));
  }
  fact("optimizer", printable(summary.optimizer));
  fact("precision", summary.precision);
  fact("elements", counts_text(summary));
  std::string on_disk = human_bytes(summary.stored) + " in " + counted(summary.files, "file");
  if (is_compressed(summary)) {
    on_disk += ", " + percent(summary.stored, summary.bytes) + " of " + human_bytes(summary.bytes);
  }
  fact("on disk", on_disk);
  if (summary.other_files.empty()) return all;
  uint64_t others = 0;
  for (const auto& [file, bytes] : summary.other_files) others += bytes;
  fact("not read", human_bytes(others) + " in " + counted(summary.other_files.size(), "file") +
                       " beside the shards");
  return all;
}

void show_damage(Page& page, const Contents& contents) {
  if (contents.damage() == nullptr || contents.checkpoint()->lost_files().empty()) return;
  page.heading("Lost");
  cli::Table table(
      {{"file", cli::Table::Align::left, true}, {"why", cli::Table::Align::left, false, 0, true}});
  for (const LostFile& file : contents.checkpoint()->lost_files()) {
    table.add({printable(file.display), printable(file.why)}, cli::Style::bad);
  }
  page.table(table);
}

}  // namespace

cli::Table kinds_table(const Summary& summary) {
  using Align = cli::Table::Align;
  std::vector<cli::Table::Column> columns{
      {"kind"}, {"bytes", Align::right}, {"share", Align::right}};
  if (is_compressed(summary)) {
    columns.push_back({"on disk", Align::right});
    columns.push_back({"ratio", Align::right});
  }
  cli::Table table(std::move(columns));
  for (const BytesOfKind& kind : summary.kinds) {
    std::vector<std::string> cells{printable(kind.kind), human_bytes(kind.bytes),
                                   percent(kind.bytes, summary.bytes)};
    if (is_compressed(summary)) {
      cells.push_back(human_bytes(kind.stored));
      cells.push_back(percent(kind.stored, kind.bytes));
    }
    table.add(std::move(cells));
  }
  return table;
}

namespace {

void show_kinds(Page& page, const Summary& summary) {
  page.heading("Bytes by kind");
  page.table(kinds_table(summary));
}

void show_ranks(Page& page, const Summary& summary) {
  if (summary.ranks.size() < 2) return;
  using Align = cli::Table::Align;
  const auto less = [](const RankShare& a, const RankShare& b) { return a.bytes < b.bytes; };
  const auto extremes = std::minmax_element(summary.ranks.begin(), summary.ranks.end(), less);
  const RankShare& least = *extremes.first;
  const RankShare& most = *extremes.second;
  page.heading("Ranks");
  cli::Table table({{"rank"}, {"bytes", Align::right}, {"of the largest", Align::right}});
  const auto add = [&](const std::string& what, const RankShare& share) {
    table.add({what + "dp " + std::to_string(share.dp) + " mp " + std::to_string(share.mp),
               human_bytes(share.bytes), percent(share.bytes, most.bytes)});
  };
  if (summary.ranks.size() <= kMostRanksShown) {
    for (const RankShare& share : summary.ranks) add("", share);
  } else {
    add("largest of " + std::to_string(summary.ranks.size()) + ": ", most);
    add("smallest: ", least);
  }
  page.table(table);
}

// A line for each pipeline stage, a column for each tensor-parallel rank.
void show_grid(Page& page, const std::vector<GridRank>& grid) {
  constexpr uint32_t kMostColumns = 8;
  if (grid.empty()) return;
  using Align = cli::Table::Align;
  const uint32_t ranks = grid.back().tp_rank + 1;
  page.heading("Trained elements by pipeline stage and tensor-parallel rank");
  std::vector<cli::Table::Column> columns{{"stage"}, {"layers"}, {"tensors", Align::right}};
  for (uint32_t rank = 0; rank < std::min(ranks, kMostColumns); ++rank) {
    const bool is_last = rank == kMostColumns - 1 && ranks > kMostColumns;
    columns.push_back({"tp " + std::to_string(is_last ? ranks - 1 : rank), Align::right});
  }
  cli::Table table(std::move(columns));
  for (size_t first = 0; first < grid.size(); first += ranks) {
    std::vector<std::string> cells{std::to_string(grid[first].stage), printable(grid[first].layers),
                                   std::to_string(grid[first].params)};
    for (uint32_t rank = 0; rank < std::min(ranks, kMostColumns); ++rank) {
      const bool is_last = rank == kMostColumns - 1 && ranks > kMostColumns;
      const GridRank& shown = grid[first + (is_last ? ranks - 1 : rank)];
      cells.push_back(grouped(static_cast<uint64_t>(shown.elements)));
    }
    table.add(std::move(cells));
  }
  page.table(table);
}

void show_estimates(Page& page, const Hardware& hardware,
                    const std::vector<MemoryEstimate>& estimates, const Checkpoint* checkpoint,
                    uint64_t gpu_memory) {
  using Align = cli::Table::Align;
  if (estimates.empty()) return;
  page.heading("Memory to continue training on " +
               counted(hardware.nodes * hardware.gpus_per_node, "GPU") + ", " +
               std::to_string(hardware.gpus_per_node) +
               " on a node, without activations (N, M; P parameters, L of the largest layer)");
  cli::Table table({{"stage"},
                    {"offload"},
                    {"a GPU", Align::right},
                    {"formula", Align::left, false, 1},
                    {"a node's CPU", Align::right},
                    {"formula", Align::left, false, 1},
                    {"note"}});
  for (const MemoryEstimate& estimate : estimates) {
    const bool cpu = !estimate.cpu_formula.empty();
    std::string remark;
    if (gpu_memory > 0) remark = estimate.gpu_bytes <= gpu_memory ? "fits" : "too much";
    if (checkpoint != nullptr && is_of_run(estimate, *checkpoint)) {
      remark = "as this run" + (remark.empty() ? "" : ", " + remark);
    }
    table.add({std::to_string(estimate.stage), estimate.offload, human_bytes(estimate.gpu_bytes),
               estimate.gpu_formula, cpu ? human_bytes(estimate.cpu_bytes) : "",
               estimate.cpu_formula, remark});
  }
  page.table(table);
}

void show_conversions(Page& page, const std::vector<Conversion>& conversions) {
  if (conversions.empty()) return;
  page.heading("Can be made into");
  cli::Table table({{"what"}, {"by", cli::Table::Align::left, false, 0, true}});
  for (const Conversion& conversion : conversions) {
    const bool refused = !conversion.refusal.empty();
    table.add(
        {conversion.what, refused ? "no: " + printable(conversion.refusal) : conversion.command},
        refused ? cli::Style::warning : cli::Style::plain);
  }
  page.table(table);
}

std::string name_of(const fs::path& path, const SavedState& state) {
  const bool is_tag_of_path = state.is_latest && state.named == path;
  return is_tag_of_path ? state.tag : state.below(path).string();
}

bool is_read(const Contents& contents, const SavedState& state) {
  return contents.own() == state.own();
}

// Lists the other checkpoints at a path that does not name a single one.
void show_states(Page& page, const fs::path& path, const Contents& contents,
                 const std::vector<SavedState>& states) {
  if (states.empty()) return;
  page.heading("Checkpoints there");
  using Align = cli::Table::Align;
  cli::Table table({{"path", Align::left, true},
                    {"what"},
                    {"step", Align::right},
                    {"", Align::left, false, 0, true}});
  for (const SavedState& state : states) {
    const bool is_damaged = !state.damage.empty();
    table.add({printable(name_of(path, state)), std::string(to_string(state.kind)),
               state.step ? std::to_string(*state.step) : "",
               is_damaged                 ? printable(state.damage)
               : is_read(contents, state) ? "read here"
                                          : ""},
              is_damaged ? cli::Style::bad : cli::Style::plain);
  }
  page.table(table);
}

nlohmann::json states_json(const fs::path& path, const Contents& contents,
                           const std::vector<SavedState>& states) {
  nlohmann::json all = nlohmann::json::array();
  for (const SavedState& state : states) {
    nlohmann::json& entry = all.emplace_back(
        nlohmann::json{{"path", name_of(path, state)},
                       {"kind", to_string(state.kind)},
                       {"model", model_name(path, state)},
                       {"tag", state.tag},
                       {"step", state.step ? nlohmann::json(*state.step) : nlohmann::json()},
                       {"latest", state.is_latest},
                       {"read", is_read(contents, state)}});
    if (!state.damage.empty()) entry["damage"] = state.damage;
  }
  return all;
}

nlohmann::json summary_json(const Contents& contents, const Summary& summary,
                            const Hardware& hardware, const std::vector<MemoryEstimate>& estimates,
                            const std::vector<Conversion>& conversions) {
  nlohmann::json data = dsckpt::summary_json(summary);
  data["form"] = contents.form();
  data["notes"] = contents.notes();
  if (contents.checkpoint()) data["checkpoint"] = facts_json(*contents.checkpoint());
  if (contents.damage() != nullptr) data["damage"] = damage_json(contents);
  data["memory"] = memory_json(hardware, estimates, contents.checkpoint());
  data["conversions"] = nlohmann::json::array();
  for (const Conversion& conversion : conversions) {
    nlohmann::json entry = {{"tool", conversion.tool}, {"possible", conversion.refusal.empty()}};
    if (!conversion.refusal.empty()) entry["refusal"] = conversion.refusal;
    if (!conversion.command.empty()) entry["command"] = conversion.command;
    data["conversions"].push_back(std::move(entry));
  }
  return data;
}

// Lists the files of a checkpoint that does not open, with the defects.
void show_files(const SummaryArguments& args, const Error& error) {
  const std::vector<ListedShard> files = listed_shards(args.path, args.contents);
  Page page;
  page.fact("layout", error.is_damage() ? "not read: files are missing or damaged"
                                        : "not read: it is not supported");
  page.heading("Files");
  cli::Table table({{"file", cli::Table::Align::left, true},
                    {"bytes", cli::Table::Align::right},
                    {"state", cli::Table::Align::left, false, 0, true}});
  for (const ListedShard& file : files) {
    const bool opens = file.why.empty();
    table.add(
        {printable(file.display), human_bytes(file.bytes), opens ? "opens" : printable(file.why)},
        opens ? cli::Style::plain : cli::Style::bad);
  }
  page.table(table);
  std::cout << page.text();
}

Contents open_or_show_files(InputFiles& inputs, const cli::Common& common,
                            const SummaryArguments& args) {
  try {
    return open_contents(inputs, common, args.path, args.contents, false);
  } catch (const Error& error) {
    const bool has_files = error.is_damage() || error.kind() == ErrorKind::unsupported;
    if (!has_files || common.json) throw;
    try {
      show_files(args, error);
    } catch (const Error&) {
      error.raise();  // there is no folder with files
    }
    throw;
  }
}

int summary(const CLI::App& app, const cli::Common& common, const SummaryArguments& args) {
  const auto opened = std::make_shared<InputFiles>();
  InputFiles& inputs = *opened;
  const Contents contents = open_or_show_files(inputs, common, args);
  const Hardware hardware = hardware_of(contents, args);
  const Summary summary = summarize(inputs, contents);
  // One shard does not show the size of the model.
  const bool is_shard = parse_shard_name(content_path(args.path).filename().string()).has_value();
  std::vector<MemoryEstimate> estimates;
  if (!is_shard) {
    estimates = memory_estimates(summary.parameters(), summary.largest_layer, hardware);
  }
  std::vector<Conversion> possible;
  if (contents.checkpoint()) {
    possible = conversions(
        source_of(contents.checkpoint()->folder().named, opened, contents.shared_checkpoint()));
  }
  const auto facts = facts_of(contents, summary);
  if (!args.html.file.empty()) {
    write_html({args.path, inputs, contents, facts, summary, hardware, estimates, possible},
               args.html, common);
  }
  const std::vector<SavedState> states = several_states(*args.contents.folders, args.path);
  if (common.json) {
    nlohmann::json data = summary_json(contents, summary, hardware, estimates, possible);
    if (!states.empty()) data["candidates"] = states_json(args.path, contents, states);
    const int status = say_damage(app, common, contents);
    cli::print_json("summary", std::move(data));
    return status;
  }
  Page page;
  for (const auto& [label, text] : facts) page.fact(label, text);
  show_damage(page, contents);
  show_states(page, args.path, contents, states);
  show_kinds(page, summary);
  show_ranks(page, summary);
  show_grid(page, summary.grid);
  show_estimates(page, hardware, estimates, contents.checkpoint(), args.gpu_memory);
  show_conversions(page, possible);
  std::cout << page.text();
  cli::notes(app, common, contents.notes());
  return say_damage(app, common, contents);
}

}  // namespace

Command add_summary(CLI::App& app, cli::Common& common) {
  const auto args = std::make_shared<SummaryArguments>();
  add_contents_options(app, "path", args->path, args->contents);
  cli::in_range(app.add_option("--gpus", args->gpus,
                               "Estimate memory for N GPUs (default: as many as saved it)"),
                1, 1 << 20)
      ->type_name("N");
  cli::in_range(app.add_option("--gpus-per-node", args->gpus_per_node,
                               "GPUs of a node (default: as many as fit evenly, up to 8)"),
                1, 1 << 20)
      ->type_name("M");
  app.add_option_function<std::string>(
         "--gpu-memory",
         [args](const std::string& text) { args->gpu_memory = parse_size(text, "size"); },
         "Mark the estimates that fit into a GPU with this much memory: 80GB")
      ->type_name("SIZE");
  add_html_options(app, args->html);
  return {&app, [&app, &common, args] {
            if (args->path.empty()) {
              throw UsageError("path is required").with_hint("--help lists the options");
            }
            return summary(app, common, *args);
          }};
}

}  // namespace dsckpt::inspect
