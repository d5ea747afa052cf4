// ckpt-inspect diff: the differences between two checkpoints or sets of weights.

#include "inspect/diff.h"

#include <CLI/App.hpp>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "base/keyed_hash.h"
#include "base/patterns.h"
#include "base/text.h"
#include "ckpt_inspect/commands.h"
#include "ckpt_inspect/html.h"
#include "ckpt_inspect/shown.h"
#include "cli/far_paths.h"
#include "cli/messages.h"
#include "cli/option_facts.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "io/text_file.h"
#include "report/html/diff_page.h"
#include "report/report.h"
#include "report/values.h"

namespace dsckpt::inspect {
namespace {

struct DiffArguments {
  std::string path_a;
  std::string path_b;
  std::string tag_a;
  std::string tag_b;
  bool states = false;
  Selection selection;
  std::vector<std::string> strip_prefix;
  std::optional<DType> as;
  std::optional<double> atol;
  std::optional<double> rtol;
  bool all = false;
  std::optional<size_t> top;
  std::string html;  // "": no page
  bool force = false;
};

// One opened side.
class Side {
 public:
  Side(const DiffArguments& args, const cli::Common& common, const std::string& path,
       const std::string& tag)
      : contents_(open_contents(inputs_, common, path, {.tag = tag, .states = args.states})),
        tensors_(selected(contents_, args.selection)) {
    KeyedSet<std::string> labels;
    for (NamedTensor& tensor : tensors_) {
      const std::string full = tensor.name;
      tensor.name = without_prefix(tensor.name, args.strip_prefix);
      tensor.alias_of = without_prefix(tensor.alias_of, args.strip_prefix);
      if (!labels.insert(tensor.label()).second) {
        throw UsageError("--strip-prefix gives '" + full + "' the name '" + tensor.name +
                         "' of another tensor");
      }
    }
  }

  DiffSide side() const { return {&inputs_, &tensors_, contents_.checkpoint() != nullptr}; }
  const Contents& contents() const { return contents_; }
  bool empty() const { return tensors_.empty(); }

 private:
  InputFiles inputs_;
  Contents contents_;
  std::vector<NamedTensor> tensors_;
};

// Returns "float32[3, 4]", or "float32[3, 4] -> bfloat16[3, 4]" if the sides differ.
std::string types_of(const TensorDiff& tensor) {
  const auto text = [](const std::optional<DType>& dtype, const std::optional<Shape>& shape) {
    return dtype ? std::string(torch_name(*dtype)) + to_text(*shape) : std::string();
  };
  const std::string a = text(tensor.dtype_a, tensor.shape_a);
  const std::string b = text(tensor.dtype_b, tensor.shape_b);
  if (a.empty() || b.empty() || a == b) return a.empty() ? b : a;
  return a + " -> " + b;
}

}  // namespace

Cells difference_cells(const TensorDiff& tensor) {
  const Difference& values = tensor.values;
  Cells cells{{"differs", std::string(to_string(tensor.verdict))},
              {"type and shape", types_of(tensor)},
              {"change", ""},
              {"cosine", ""},
              {"elements", ""},
              {"max abs", ""},
              {"max rel", ""},
              {"max ulp", ""},
              {"at element", ""},
              {"a", ""},
              {"b", ""}};
  if (values.differing == 0) return cells;
  const auto number = [&](Exact value) { return difference_number(value, *tensor.as); };
  cells[2].second = change_number(values, *tensor.as);
  cells[3].second = cosine_number(values, *tensor.as);
  cells[4].second = std::to_string(values.differing);
  cells[5].second = number(values.max_absolute);
  cells[6].second = short_number(values.max_relative);
  if (is_floating_point(*tensor.as)) cells[7].second = std::to_string(values.max_ulps);
  cells[8].second = std::to_string(values.index);
  cells[9].second = number(values.a);
  cells[10].second = number(values.b);
  return cells;
}

namespace {

cli::Style style_of(Verdict verdict) {
  if (verdict == Verdict::equal) return cli::Style::dim;
  return verdict == Verdict::within ? cli::Style::plain : cli::Style::bad;
}

constexpr size_t kMostAlike = 8;  // rows of a terminal's table

// Tensors with equal keys differ in the same way: not in values, and with the same types and
// shapes.
using Way =
    std::tuple<Verdict, std::string, std::optional<DType>, std::optional<DType>, Shape, Shape>;
std::optional<Way> way_of(const TensorDiff& tensor) {
  if (tensor.verdict == Verdict::equal || tensor.verdict == Verdict::within ||
      tensor.values.differing > 0) {
    return std::nullopt;
  }
  const bool shapes = tensor.verdict == Verdict::shape;
  return Way{tensor.verdict,
             tensor.state,
             tensor.dtype_a,
             tensor.dtype_b,
             shapes ? *tensor.shape_a : Shape(),
             shapes ? *tensor.shape_b : Shape()};
}

// Returns the ways in which many tensors differ. A terminal gets one line for each.
std::map<Way, std::vector<const TensorDiff*>> folded_ways(const Diff& diff) {
  std::map<Way, std::vector<const TensorDiff*>> ways;
  for (const TensorDiff& tensor : diff.tensors) {
    if (const auto way = way_of(tensor)) ways[*way].push_back(&tensor);
  }
  std::erase_if(ways, [](const auto& way) { return way.second.size() <= kMostAlike; });
  return ways;
}

std::string way_text(const std::vector<const TensorDiff*>& tensors) {
  const TensorDiff& first = *tensors.front();
  if (first.verdict == Verdict::shape) return types_of(first);
  const auto text = [](const std::optional<DType>& dtype) {
    return dtype ? std::string(torch_name(*dtype)) : std::string();
  };
  const std::string a = text(first.dtype_a);
  const std::string b = text(first.dtype_b);
  return a.empty() || b.empty() || a == b ? (a.empty() ? b : a) : a + " -> " + b;
}

// Returns a hint how to compare values if only the types differ.
std::string types_hint(const Diff& diff, const DiffArguments& args) {
  if (args.as) return "";
  const TensorDiff* other = nullptr;
  for (const TensorDiff& tensor : diff.tensors) {
    if (tensor.verdict == Verdict::dtype) {
      other = &tensor;
    } else if (tensor.verdict != Verdict::equal) {
      return "";
    }
  }
  if (other == nullptr || !is_floating_point(*other->dtype_a) ||
      !is_floating_point(*other->dtype_b)) {
    return "";
  }
  const DType narrow =
      size_of(*other->dtype_a) < size_of(*other->dtype_b) ? *other->dtype_a : *other->dtype_b;
  return "only types differ; --as " + std::string(torch_name(narrow)) +
         " compares the values, rounded to it";
}

// Prints in the order of the model if all are listed, else the most changed ones first.
void print_table(const Diff& diff, bool all, std::optional<size_t> top) {
  using Align = cli::Table::Align;
  std::vector<cli::Table::Column> columns{{"name", Align::left, true},
                                          {"state"},
                                          {"differs"},
                                          {"type and shape", Align::left, false, 1}};
  using Ranked = std::pair<const char*, uint8_t>;
  for (const auto& [heading, rank] : {Ranked{"change", 0},
                                      {"cosine", 2},
                                      {"elements", 2},
                                      {"max abs", 0},
                                      {"max rel", 3},
                                      {"max ulp", 3},
                                      {"at element", 4},
                                      {"a", 4},
                                      {"b", 4}}) {
    columns.push_back({heading, Align::right, false, rank});
  }
  cli::Table table(std::move(columns));
  const cli::Terminal terminal = cli::Terminal::of_stdout();
  std::map<Way, std::vector<const TensorDiff*>> folded;
  if (terminal.tables && !all) folded = folded_ways(diff);
  std::vector<const TensorDiff*> listed;
  if (all) {
    for (const TensorDiff& tensor : diff.tensors) listed.push_back(&tensor);
  } else {
    listed = diff.by_change();
  }
  const size_t more = listed.size() - std::min(listed.size(), top.value_or(listed.size()));
  listed.resize(listed.size() - more);
  for (const TensorDiff* each : listed) {
    const TensorDiff& tensor = *each;
    const auto way = way_of(tensor);
    const auto fold = way ? folded.find(*way) : folded.end();
    if (fold != folded.end()) {
      if (fold->second.front() != each) continue;
      table.add(
          {printable(tensor.name) + " and " + std::to_string(fold->second.size() - 1) + " more",
           printable(tensor.state), std::string(to_string(tensor.verdict)), way_text(fold->second)},
          style_of(tensor.verdict));
      continue;
    }
    std::vector<std::string> cells{printable(tensor.name), printable(tensor.state)};
    for (auto& [heading, cell] : difference_cells(tensor)) cells.push_back(std::move(cell));
    table.add(std::move(cells), style_of(tensor.verdict));
  }
  table.write(std::cout, terminal);
  if (!folded.empty()) std::cout << "--all lists each tensor\n";
  if (more > 0) std::cout << counted(more, "tensor") << " more\n";
}

// Returns "29 tensors, bit-equal", or the numbers of differences by kind.
std::string summary(const Diff& diff) {
  std::string text = counted(diff.tensors.size(), "tensor") + ", ";
  if (diff.count(Verdict::equal) == diff.tensors.size()) return text + "bit-equal";
  const std::vector<std::pair<Verdict, std::string>> words{
      {Verdict::equal, "bit-equal"},        {Verdict::within, "within tolerance"},
      {Verdict::values, "of other values"}, {Verdict::dtype, "of another type"},
      {Verdict::shape, "of another shape"}, {Verdict::only_in_a, "only in A"},
      {Verdict::only_in_b, "only in B"}};
  std::string separator;
  for (const auto& [verdict, what] : words) {
    if (const size_t count = diff.count(verdict); count > 0) {
      text += separator + std::to_string(count) + " " + what;
      separator = ", ";
    }
  }
  if (diff.total.differing == 0) return text;
  std::string change;
  if (diff.total.squared_change > 0) {
    change = "; relative change " + change_number(diff.total, DType::float32);
    const bool has_cosine = !std::isnan(diff.total.cosine());
    if (has_cosine) change += ", cosine " + cosine_number(diff.total, DType::float32);
  }
  return text + "; " + grouped(diff.total.differing) + " of " +
         grouped_count(diff.total.count, "element") +
         (diff.total.differing == 1 ? " differs" : " differ") + ", by at most " +
         short_number(static_cast<double>(diff.total.max_absolute)) + " in '" +
         printable(diff.largest_in) + "'" + change;
}

DiffPage::Side page_side(const std::string& path, const Contents& contents) {
  DiffPage::Side side{.path = path, .form = contents.form(), .facts = {}};
  const Checkpoint* checkpoint = contents.checkpoint();
  if (checkpoint == nullptr) return side;
  const CheckpointFacts& facts = checkpoint->facts();
  side.form += " checkpoint";
  side.facts.emplace_back("tag", facts.tag);
  if (facts.global_steps) side.facts.emplace_back("step", std::to_string(*facts.global_steps));
  side.facts.emplace_back("data-parallel ranks", std::to_string(facts.mesh.dp));
  if (!facts.ds_version.empty()) side.facts.emplace_back("DeepSpeed", facts.ds_version);
  return side;
}

int diff(const CLI::App& app, const cli::Common& common, const DiffArguments& args) {
  const bool commits = common.step == cli::ReadingStep::commit;
  if (!args.html.empty() && !commits) check_page(args.html, args.force);
  const Side a(args, common, args.path_a, args.tag_a);
  const Side b(args, common, args.path_b, args.tag_b);
  require_match(args.selection, !a.empty() || !b.empty());
  DiffOptions options{.as = args.as, .tolerance = {}};
  if (args.atol || args.rtol) {
    options.tolerance = Tolerance{args.atol.value_or(0), args.rtol.value_or(0)};
  }
  Progress progress;
  Diff result;
  {
    const cli::InterruptGuard guard(progress);
    const cli::ProgressDisplay display(progress, common);
    result =
        diff_tensors(a.side(), b.side(), options, {common.threads, progress, common.readers.get()});
  }
  if (common.step == cli::ReadingStep::plan) return cli::kDone;
  if (!args.html.empty()) {
    const std::string page = html_of(DiffPage{.a = page_side(args.path_a, a.contents()),
                                              .b = page_side(args.path_b, b.contents()),
                                              .diff = &result,
                                              .verdict = summary(result),
                                              .advice = types_hint(result, args),
                                              .all = args.all});
    // A commit may have written it before.
    if (!commits || !holds_text(args.html, page)) {
      check_page(args.html, args.force);
      write_page(args.html, page);
    }
  }
  if (common.json) {
    nlohmann::json data = diff_json(result, args.all);
    data["a"] = {{"path", args.path_a}, {"form", a.contents().form()}};
    data["b"] = {{"path", args.path_b}, {"form", b.contents().form()}};
    cli::print_json("diff", std::move(data));
  } else {
    print_table(result, args.all, args.top);
    for (const std::string& note : result.notes) cli::note(app, common, note);
    std::cout << summary(result) << "\n";
    cli::hint(common, types_hint(result, args));
  }
  return result.same() ? cli::kDone : cli::kCheckFailed;
}

void add_type_option(CLI::App& sub, std::optional<DType>& as) {
  static const std::map<std::string, DType> kTypes{
      {"float32", DType::float32}, {"float16", DType::float16}, {"bfloat16", DType::bfloat16}};
  cli::one_of(sub.add_option_function<std::string>(
                  "--as", [&as](const std::string& name) { as = kTypes.at(name); },
                  "Round floating types to this one first; default: another type is a difference"),
              {"float32", "float16", "bfloat16"})
      ->type_name("DTYPE");
}

// An option for a number from 0 on, including "inf".
CLI::Option* add_tolerance(CLI::App& sub, const std::string& name, std::optional<double>& value,
                           const std::string& description) {
  const auto problem = [](const std::string& text) -> std::string {
    double number = 0;
    const bool good = CLI::detail::lexical_cast(text, number) && number >= 0;
    return good ? "" : "'" + text + "' is not a number of at least 0";
  };
  return sub.add_option(name, value, description)->check(problem);
}

}  // namespace

Command add_diff(CLI::App& app, cli::Common& common) {
  CLI::App& sub = *app.add_subcommand(
      "diff", "Differences in names, shapes, types and values between two checkpoints of any form");
  const auto args = std::make_shared<DiffArguments>();
  cli::input_path(
      sub.add_option("a", args->path_a, "Checkpoint, folder of weights or file, as for `list`"))
      ->required();
  cli::input_path(sub.add_option("b", args->path_b, "Checkpoint or weights to compare with"))
      ->required();
  sub.add_option("--tag-a", args->tag_a, "Tag to read of A (default: the one in `latest`)");
  sub.add_option("--tag-b", args->tag_b, "Tag to read of B");
  sub.add_flag("--states", args->states, "The optimizer's states too, if both have them");
  add_match(sub, args->selection);
  sub.add_option("--strip-prefix", args->strip_prefix,
                 "Remove this from the front of names that have it")
      ->type_name("PREFIX")
      ->allow_extra_args(false);
  add_type_option(sub, args->as);
  add_tolerance(sub, "--atol", args->atol, "As good as equal: |a - b| <= ATOL + RTOL * |b|")
      ->type_name("ATOL")
      ->default_str("0");
  add_tolerance(sub, "--rtol", args->rtol, "See --atol")->type_name("RTOL")->default_str("0");
  sub.add_flag("--all", args->all,
               "List every tensor in the model's order, also those that are equal");
  cli::count_from_one(
      sub.add_option("--top", args->top, "List only the N tensors that changed most"))
      ->type_name("N");
  CLI::Option* html =
      cli::some_path(sub.add_option("--html", args->html,
                                    "Write it as a page for a browser, too, in one file"))
          ->type_name("REPORT");
  sub.add_flag("--force", args->force, "Replace REPORT if it exists")->needs(html);
  return cli::command_of_readers(app, sub, common,
                                 [&app, &common, args] { return diff(app, common, *args); });
}

}  // namespace dsckpt::inspect
