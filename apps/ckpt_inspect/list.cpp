// ckpt-inspect list: one line for each tensor.

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"
#include "ckpt_inspect/commands.h"
#include "cli/messages.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "inspect/extents.h"
#include "report/report.h"

namespace dsckpt::inspect {
namespace {

// "0-3, 8"
std::string ranges_text(const std::set<uint32_t>& numbers) {
  std::string text;
  for (auto at = numbers.begin(); at != numbers.end();) {
    const uint32_t first = *at;
    uint32_t last = first;
    while (++at != numbers.end() && *at == last + 1) last = *at;
    text += (text.empty() ? "" : ", ") + std::to_string(first) +
            (last > first ? "-" + std::to_string(last) : "");
  }
  return text;
}

// "4 files, dp 0-3"
std::string holders_text(const InputFiles& inputs, const Contents& contents,
                         const NamedTensor& tensor) {
  if (!tensor.lost.empty()) return lost_text(contents, tensor);
  if (!tensor.alias_of.empty()) return "= " + printable(tensor.alias_of);
  const std::vector<FileId> files = files_with(tensor.value);
  if (files.size() == 1) return printable(inputs[files.front()].display());
  std::set<uint32_t> dp;
  std::set<uint32_t> mp;
  for (const ShardName& rank : ranks_of(inputs, contents, files)) {
    dp.insert(rank.dp_rank);
    mp.insert(rank.mp_rank);
  }
  std::string text = counted(files.size(), "file");
  if (!dp.empty()) text += ", dp " + ranges_text(dp);
  if (mp.size() > 1 || (!mp.empty() && *mp.begin() > 0)) text += " mp " + ranges_text(mp);
  return text;
}

int list(const CLI::App& app, const cli::Common& common, const TensorArguments& args) {
  InputFiles inputs;
  const Contents contents = open_contents(inputs, common, args.path, args.contents);
  const std::vector<NamedTensor> tensors = selected(contents, args.selection);
  if (common.json) {
    nlohmann::json data = {{"form", contents.form()},
                           {"tensors", nlohmann::json::array()},
                           {"notes", contents.notes()}};
    if (contents.checkpoint()) {
      data["checkpoint"] = facts_json(*contents.checkpoint());
    } else {
      data["metadata"] = metadata_of(contents.weights_files());
    }
    for (const NamedTensor& tensor : tensors) {
      data["tensors"].push_back(tensor_json(inputs, contents, tensor));
    }
    if (contents.damage() != nullptr) data["damage"] = damage_json(contents);
    const int status = say_damage(app, common, contents);
    cli::print_json("list", std::move(data));
    return status;
  }
  std::vector<cli::Table::Column> columns = tensor_columns();
  columns.push_back({"bytes", cli::Table::Align::right});
  columns.push_back({"files", cli::Table::Align::left, false, 6});
  cli::Table table(std::move(columns));
  const cli::Terminal terminal = cli::Terminal::of_stdout();
  for (const NamedTensor& tensor : tensors) {
    std::vector<std::string> cells = tensor_cells(tensor);
    cells.push_back(cli::bytes_cell(terminal, tensor.value.nbytes()));
    cells.push_back(holders_text(inputs, contents, tensor));
    table.add(std::move(cells));
  }
  table.write(std::cout, terminal);
  return say_damage(app, common, contents);
}

}  // namespace

Command add_list(CLI::App& app, cli::Common& common) {
  CLI::App& sub =
      *app.add_subcommand("list", "One line a tensor: name, kind, type, shape, bytes, files");
  const auto args = std::make_shared<TensorArguments>();
  add_tensor_arguments(sub, *args);
  args->contents.damaged = true;
  return {&sub, [&app, &common, args] { return list(app, common, *args); }};
}

}  // namespace dsckpt::inspect
