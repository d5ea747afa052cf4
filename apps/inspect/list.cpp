// ckpt-inspect list: one line a tensor.

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "inspect/commands.h"
#include "report.h"
#include "terminal.h"

namespace dsckpt::inspect {
namespace {

struct Arguments {
  std::string path;
  ContentsOptions contents;
  Selection selection;
};

int list(const cli::Common& common, const Arguments& args) {
  InputFiles inputs;
  const Contents contents = Contents::open(inputs, args.path, args.contents);
  const std::vector<NamedTensor> tensors = selected(contents, args.selection);
  if (common.json) {
    nlohmann::json data = {{"form", contents.form()},
                           {"tensors", nlohmann::json::array()},
                           {"notes", contents.notes()}};
    if (contents.checkpoint()) data["checkpoint"] = facts_json(*contents.checkpoint());
    for (const NamedTensor& tensor : tensors) {
      data["tensors"].push_back(tensor_json(inputs, tensor));
    }
    cli::print_json("list", std::move(data));
    return cli::kDone;
  }
  using Align = cli::Table::Align;
  cli::Table table({{"name", Align::left, true},
                    {"kind"},
                    {"type"},
                    {"shape"},
                    {"bytes", Align::right},
                    {"files"}});
  for (const NamedTensor& tensor : tensors) {
    const std::vector<std::string> files = files_of(inputs, tensor.value);
    const std::string where = !tensor.alias_of.empty() ? "= " + printable(tensor.alias_of)
                              : files.size() == 1      ? files.front()
                                                       : std::to_string(files.size()) + " files";
    const std::string kind = tensor.kind ? to_string(*tensor.kind) : "tensor";
    table.add({printable(tensor.name), tensor.state.empty() ? kind : printable(tensor.state),
               std::string(torch_name(tensor.value.dtype())), to_text(tensor.value.shape()),
               human_bytes(tensor.value.nbytes()), where});
  }
  std::cout << table.text(cli::Terminal::of_stdout());
  return cli::kDone;
}

}  // namespace

Command add_list(CLI::App& app, cli::Common& common) {
  CLI::App& sub =
      *app.add_subcommand("list", "One line a tensor: name, kind, type, shape, bytes, files");
  const auto args = std::make_shared<Arguments>();
  add_contents_options(sub, "path", args->path, args->contents);
  sub.add_flag("--states", args->contents.states, "The optimizer's states too");
  add_selection(sub, args->selection);
  return {&sub, [&common, args] { return list(common, *args); }};
}

}  // namespace dsckpt::inspect
