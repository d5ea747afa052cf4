// ckpt-inspect tree: the names as a tree of modules.

#include "inspect/tree.h"

#include <CLI/App.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "ckpt_inspect/commands.h"
#include "ckpt_inspect/shown.h"
#include "cli/messages.h"
#include "cli/option_facts.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "report/report.h"

namespace dsckpt::inspect {
namespace {

struct TreeArguments : TensorArguments {
  bool every_layer = false;
  int depth = 0;  // 0: the whole tree
};

// Moves the names out, which may be most of the memory.
nlohmann::json node_json(TreeNode&& node) {
  nlohmann::json out = {{"name", std::move(node.name)},
                        {"folded", node.folded},
                        {"tensors", node.tensors},
                        {"elements", node.elements},
                        {"bytes", node.bytes}};
  if (node.tensor) {
    out["dtype"] = torch_name(node.tensor->value.dtype());
    out["shape"] = node.tensor->value.shape();
    if (!node.tensor->alias_of.empty()) out["alias_of"] = node.tensor->alias_of;
    if (!node.tensor->lost.empty()) out["lost_in_part"] = true;
  }
  if (!node.has_children()) return out;
  out["children"] = nlohmann::json::array();
  expand(node);
  for (TreeNode& child : node.children) out["children"].push_back(node_json(std::move(child)));
  node.children = std::vector<TreeNode>();
  return out;
}

}  // namespace

std::string what_text(const TreeNode& node) {
  if (!node.tensor) return counted(node.tensors, "tensor");
  if (!node.tensor->alias_of.empty()) return "= " + printable(node.tensor->alias_of);
  return std::string(torch_name(node.tensor->value.dtype())) + " " +
         to_text(node.tensor->value.shape()) +
         (node.folded > 1 ? " x " + std::to_string(node.folded) : "") +
         (node.tensor->lost.empty() ? "" : " lost in part");
}

namespace {

class Printer {
 public:
  Printer(const cli::Terminal& terminal, int depth) : terminal_(terminal), depth_(depth) {}

  std::string text(const TreeNode& root) {
    add_children(root, "", 1);
    table_.add(
        {"", what_text(root), cli::count_cell(terminal_, static_cast<uint64_t>(root.elements)),
         cli::bytes_cell(terminal_, root.bytes)},
        cli::Style::bold);
    return table_.text(terminal_);
  }

 private:
  void add_children(const TreeNode& node, const std::string& indent, int depth) {
    if (depth_ > 0 && depth > depth_) return;
    if (node.only != nullptr) add(only_child(node), true, indent, depth);
    for (const TreeNode& child : node.children) {
      add(child, &child == &node.children.back(), indent, depth);
    }
  }

  void add(const TreeNode& child, bool last, const std::string& indent, int depth) {
    const char* branch = !terminal_.tables ? "" : last ? last_branch_ : branch_;
    table_.add({indent + branch + printable(child.name), what_text(child),
                cli::count_cell(terminal_, static_cast<uint64_t>(child.elements)),
                cli::bytes_cell(terminal_, child.bytes)});
    add_children(child, indent + (!terminal_.tables ? "  " : last ? "   " : trunk_), depth + 1);
  }

  const bool ascii_ = cli::wants_ascii();
  const char* const branch_ = ascii_ ? "|- " : "├─ ";
  const char* const last_branch_ = ascii_ ? "`- " : "└─ ";
  const char* const trunk_ = ascii_ ? "|  " : "│  ";
  cli::Terminal terminal_;
  int depth_;
  cli::Table table_{{{"name", cli::Table::Align::left, true},
                     {"what", cli::Table::Align::left, false, 1},
                     {"elements", cli::Table::Align::right, false, 2},
                     {"bytes", cli::Table::Align::right}}};
};

int tree(const CLI::App& app, const cli::Common& common, const TreeArguments& args) {
  InputFiles inputs;
  const Contents contents = open_contents(inputs, common, args.path, args.contents);
  const std::vector<NamedTensor> tensors = selected(contents, args.selection);
  TreeNode root = tree_of(tensors, !args.every_layer);
  if (common.json) {
    nlohmann::json data = node_json(std::move(root));
    if (contents.damage() != nullptr) data["damage"] = damage_json(contents);
    const int status = say_damage(app, common, contents);
    cli::print_json("tree", std::move(data));
    return status;
  }
  std::cout << Printer(cli::Terminal::of_stdout(), args.depth).text(root);
  return say_damage(app, common, contents);
}

}  // namespace

Command add_tree(CLI::App& app, cli::Common& common) {
  CLI::App& sub =
      *app.add_subcommand("tree", "The names as a tree of modules, with counts and sizes");
  const auto args = std::make_shared<TreeArguments>();
  add_tensor_arguments(sub, *args);
  args->contents.damaged = true;
  sub.add_flag("--no-fold", args->every_layer, "Layers that are alike one by one, not as one");
  cli::count_from_one(sub.add_option("--depth", args->depth, "No deeper than N levels"))
      ->type_name("N");
  return {&sub, [&app, &common, args] { return tree(app, common, *args); }};
}

}  // namespace dsckpt::inspect
