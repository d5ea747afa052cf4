#include "ckpt_inspect/commands.h"

#include <CLI/App.hpp>
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/patterns.h"
#include "base/text.h"
#include "cli/far_paths.h"
#include "cli/interrupt.h"
#include "cli/messages.h"
#include "cli/option_facts.h"
#include "cli/progress_display.h"
#include "job/job_impl.h"
#include "report/report.h"

namespace dsckpt::inspect {

namespace {

constexpr const char* kContentsText =
    "Checkpoint folder, tag's folder, universal checkpoint, folder of weights, or one file of "
    "torch.save or safetensors";

void add_contents_choice(CLI::App& app, ContentsOptions& options, const std::string& tag_text) {
  app.add_option("-t,--tag", options.tag, tag_text)->type_name("TAG");
  cli::add_model(app, options.model);
  cli::add_roots(app, options.roots);
  cli::add_tp_rules(app, options.tp_rules);
}

}  // namespace

void add_contents_options(CLI::App& app, const std::string& name, std::string& path,
                          ContentsOptions& options) {
  cli::input_path(app.add_option(name, path, kContentsText))->required();
  add_contents_choice(app, options, "Tag to read (default: the one in `latest`)");
}

void add_contents_options(CLI::App& app, const std::string& name, std::vector<std::string>& paths,
                          ContentsOptions& options) {
  cli::input_path(app.add_option(name, paths, kContentsText))->required();
  add_contents_choice(app, options, "Tag to read (default: the one in `latest`); all: every tag");
}

Contents open_contents(InputFiles& inputs, const cli::Common& common, const std::string& path,
                       const ContentsOptions& options, bool says_which) {
  Progress progress;
  const cli::InterruptGuard guard(progress);
  inputs.watch(&progress);
  Contents contents =
      cli::while_shown(progress, common, [&] { return Contents::open(inputs, path, options); });
  inputs.watch(nullptr);
  if (says_which && !contents.choice().empty()) {
    cli::note("ckpt-inspect", common, contents.choice());
  }
  return contents;
}

void add_match(CLI::App& app, Selection& selection) {
  app.add_option("--match", selection.match, "Only tensors whose name matches")->type_name("REGEX");
}

void add_selection(CLI::App& app, Selection& selection, const std::vector<std::string>& columns) {
  add_match(app, selection);
  std::vector<std::string> keys{"order", "name", "kind", "type", "shape", "size"};
  keys.insert(keys.end(), columns.begin(), columns.end());
  cli::one_of(app.add_option("--sort", selection.sort,
                             "By order (of the checkpoint) or a column; the largest first"),
              keys)
      ->type_name("KEY")
      ->default_str("order");
}

std::vector<NamedTensor> selected(const Contents& contents, const Selection& selection) {
  const Patterns match({selection.match}, "--match");
  std::vector<NamedTensor> tensors;
  for (const NamedTensor& tensor : contents.tensors()) {
    if (match.find_in(tensor.name)) tensors.push_back(tensor);
  }
  const auto sort = [&](const auto& key) {
    std::stable_sort(tensors.begin(), tensors.end(),
                     [&](const NamedTensor& x, const NamedTensor& y) { return key(x) < key(y); });
  };
  if (selection.sort == "name") {
    sort([](const NamedTensor& tensor) { return tensor.name; });
  } else if (selection.sort == "kind") {
    sort([](const NamedTensor& tensor) { return tensor_cells(tensor)[1]; });
  } else if (selection.sort == "type") {
    sort([](const NamedTensor& tensor) { return torch_name(tensor.value.dtype()); });
  } else if (selection.sort == "shape") {
    sort([](const NamedTensor& tensor) { return tensor.value.shape(); });
  } else if (selection.sort == "size") {
    sort([](const NamedTensor& tensor) { return ~tensor.value.nbytes(); });
  }
  return tensors;
}

void add_tensor_arguments(CLI::App& app, TensorArguments& args,
                          const std::vector<std::string>& columns) {
  add_contents_options(app, "path", args.path, args.contents);
  app.add_flag("--states", args.contents.states, "The optimizer's states too");
  add_selection(app, args.selection, columns);
}

std::vector<cli::Table::Column> tensor_columns() {
  return {{"name", cli::Table::Align::left, true},
          {"kind", cli::Table::Align::left, false, 5},
          {"type", cli::Table::Align::left, false, 4},
          {"shape", cli::Table::Align::left, false, 3}};
}

std::vector<std::string> tensor_cells(const NamedTensor& tensor) {
  const std::string kind = tensor.kind ? to_string(*tensor.kind) : "tensor";
  return {printable(tensor.name), tensor.state.empty() ? kind : printable(tensor.state),
          std::string(torch_name(tensor.value.dtype())), to_text(tensor.value.shape())};
}

std::vector<std::string> damage_lines(const Contents& contents) {
  const Checkpoint& checkpoint = *contents.checkpoint();
  const Error& error = *contents.damage();
  std::vector<std::string> lines{(error.is_damage() ? "damaged: " : "not supported: ") +
                                 std::string(error.what())};
  if (!checkpoint.incomplete().empty()) {
    const size_t lost = checkpoint.incomplete().size();
    lines.push_back("lost in part: " + std::to_string(lost) + " of " +
                    counted(lost + checkpoint.params().size(), "tensor"));
  }
  return lines;
}

int say_damage(const CLI::App& app, const cli::Common& common, const Contents& contents) {
  const Error* damage = contents.damage();
  if (damage == nullptr) return cli::kDone;
  std::string text;
  for (const std::string& line : damage_lines(contents)) text += (text.empty() ? "" : "\n") + line;
  cli::note(app, common, text);
  cli::hint(common, damage->hint());
  return cli::kCheckFailed;
}

nlohmann::json damage_json(const Contents& contents) {
  const Checkpoint& checkpoint = *contents.checkpoint();
  nlohmann::json out = salvage_json(checkpoint, checkpoint.incomplete());
  out["error"] = error_json(*contents.damage());
  return out;
}

std::string lost_text(const Contents& contents, const NamedTensor& tensor) {
  if (tensor.lost.empty()) return "";
  const std::vector<LostFile>& files = contents.checkpoint()->lost_files();
  return "lost in part: " +
         printable(std::filesystem::path(files[tensor.lost.front()].display).filename().string()) +
         (tensor.lost.size() > 1 ? " and " + std::to_string(tensor.lost.size() - 1) + " more" : "");
}

void require_match(const Selection& selection, bool found) {
  if (found || selection.match.empty()) return;
  throw UsageError("no tensor's name matches '" + selection.match + "'");
}

}  // namespace dsckpt::inspect
