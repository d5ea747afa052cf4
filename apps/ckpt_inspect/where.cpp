// ckpt-inspect where: every extent of one tensor.

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "ckpt_inspect/commands.h"
#include "ckpt_inspect/shown.h"
#include "cli/messages.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "inspect/extents.h"
#include "report/report.h"

namespace dsckpt::inspect {
namespace {

struct WhereArguments {
  std::string path;
  std::string name;
  std::string state;
  ContentsOptions contents;
};

std::string rank_text(const TensorExtent& extent) {
  if (!extent.rank || extent.rank->kind == ShardName::Kind::universal) return "";
  return "dp " + std::to_string(extent.rank->dp_rank) + " mp " +
         std::to_string(extent.rank->mp_rank);
}

std::string elements_text(const TensorExtent& extent) {
  const std::string first = "[" + std::to_string(extent.first) + ", " +
                            std::to_string(extent.first + extent.row_elements) + ")";
  if (extent.rows == 1) return first;
  return first + " and " + std::to_string(extent.rows - 1) + " more, each " +
         std::to_string(extent.step) + " further";
}

std::string bytes_text(const TensorExtent& extent) {
  if (extent.rows == 1) return std::to_string(extent.row_bytes);
  return std::to_string(extent.rows) + " x " + std::to_string(extent.row_bytes) + " every " +
         std::to_string(extent.stride);
}

}  // namespace

cli::Table extents_table(const InputFiles& inputs, const std::vector<TensorExtent>& extents) {
  using Align = cli::Table::Align;
  cli::Table table({{"file", Align::left, true},
                    {"rank"},
                    {"record", Align::left, false, 2},
                    {"offset", Align::right},
                    {"bytes", Align::right},
                    {"elements", Align::left, false, 1},
                    {"note", Align::left, false, 2}});
  for (const TensorExtent& extent : extents) {
    const std::string note = extent.mean       ? "one of a mean"
                             : extent.copy > 0 ? "copy " + std::to_string(extent.copy)
                                               : "";
    table.add({printable(inputs[extent.file].display()), rank_text(extent),
               printable(extent.record), std::to_string(extent.offset), bytes_text(extent),
               elements_text(extent), note});
  }
  return table;
}

namespace {

int where(const cli::Common& common, const WhereArguments& args) {
  InputFiles inputs;
  const Contents contents = open_contents(inputs, common, args.path, args.contents);
  const NamedTensor& tensor = tensor_named(contents, args.name, args.state);
  const std::vector<TensorExtent> extents = extents_of(inputs, contents, tensor.value);
  if (common.json) {
    nlohmann::json data = tensor_json(inputs, contents, tensor);
    data["extents"] = nlohmann::json::array();
    for (const TensorExtent& extent : extents) {
      data["extents"].push_back(extent_json(inputs, extent));
    }
    cli::print_json("where", std::move(data));
    return cli::kDone;
  }
  extents_table(inputs, extents).write(std::cout, cli::Terminal::of_stdout());
  return cli::kDone;
}

}  // namespace

Command add_where(CLI::App& app, cli::Common& common) {
  CLI::App& sub =
      *app.add_subcommand("where", "Where a tensor lies: file, record, offset, bytes, elements");
  const auto args = std::make_shared<WhereArguments>();
  add_contents_options(sub, "path", args->path, args->contents);
  sub.add_option("name", args->name, "Name of the tensor")->required()->type_name("NAME");
  sub.add_option("--state", args->state, "Not the tensor itself but this state of the optimizer")
      ->type_name("KEY");
  return {&sub, [&common, args] {
            args->contents.states = !args->state.empty();
            return where(common, *args);
          }};
}

}  // namespace dsckpt::inspect
