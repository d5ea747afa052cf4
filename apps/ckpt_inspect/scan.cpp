// ckpt-inspect scan: the names that pickles below a path would import and call.

#include "inspect/scan.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "base/patterns.h"
#include "base/text.h"
#include "ckpt_inspect/commands.h"
#include "ckpt_inspect/several.h"
#include "cli/far_paths.h"
#include "cli/interrupt.h"
#include "cli/messages.h"
#include "cli/progress_display.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "report/report.h"

namespace dsckpt::inspect {
namespace {

struct ScanArguments {
  std::vector<std::string> paths;
  std::vector<std::string> allowed;
  bool is_dangerous_only = false;
  bool is_strict = false;  // the default
};

nlohmann::json json_of(const ScanResult& result) {
  nlohmann::json findings = nlohmann::json::array();
  for (const ScanFinding& finding : result.findings) {
    nlohmann::json json = {{"class", to_string(finding.danger)},
                           {"global", finding.global},
                           {"uses", finding.uses},
                           {"file", finding.file},
                           {"offset", finding.offset}};
    if (!finding.record.empty()) json["record"] = finding.record;
    if (!finding.reason.empty()) json["reason"] = finding.reason;
    findings.push_back(std::move(json));
  }
  nlohmann::json unreadable = nlohmann::json::array();
  for (const Unreadable& part : result.unreadable) {
    nlohmann::json json = {
        {"class", to_string(part.danger)}, {"file", part.file}, {"reason", part.reason}};
    if (!part.record.empty()) json["record"] = part.record;
    unreadable.push_back(std::move(json));
  }
  return {{"files", result.files},     {"not_examined", result.not_examined},
          {"pickles", result.pickles}, {"class", to_string(result.worst())},
          {"findings", findings},      {"unreadable", unreadable}};
}

std::string place(const std::string& file, const std::string& record) {
  return printable(record.empty() ? file : file + ": " + record);
}

std::string joined(const std::set<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

// One line for each global and class, the most dangerous first.
std::string text_of(const ScanResult& result, const cli::Terminal& terminal) {
  struct Line {
    std::set<std::string> uses;
    std::set<std::string> files;
    std::string first;
  };
  std::map<std::pair<int, std::string>, Line> lines;
  for (const ScanFinding& finding : result.findings) {
    Line& line = lines[{-static_cast<int>(finding.danger), finding.global}];
    line.uses.insert(finding.uses.begin(), finding.uses.end());
    if (!finding.reason.empty()) line.uses.insert(finding.reason);
    line.files.insert(finding.file);
    if (line.first.empty()) {
      line.first = place(finding.file, finding.record) + " at " + std::to_string(finding.offset);
    }
  }
  using Align = cli::Table::Align;
  cli::Table table(
      {{"class"}, {"global"}, {"used"}, {"files", Align::right}, {"first", Align::left, true}});
  const auto style_of = [](GlobalClass danger) {
    return danger == GlobalClass::dangerous ? cli::Style::bad
           : danger == GlobalClass::unknown ? cli::Style::warning
                                            : cli::Style::plain;
  };
  bool unreadable_shown = false;
  const auto show_unreadable = [&] {
    for (const Unreadable& part : result.unreadable) {
      const bool is_bad = part.danger == GlobalClass::dangerous;
      table.add({is_bad ? "dangerous" : "unreadable", printable(part.reason), "", "1",
                 place(part.file, part.record)},
                style_of(part.danger));
    }
    unreadable_shown = true;
  };
  for (const auto& [key, line] : lines) {
    const auto danger = static_cast<GlobalClass>(-key.first);
    if (danger != GlobalClass::dangerous && !unreadable_shown) show_unreadable();
    table.add({to_string(danger), printable(key.second), printable(joined(line.uses)),
               std::to_string(line.files.size()), line.first},
              style_of(danger));
  }
  if (!unreadable_shown) show_unreadable();
  return table.empty() ? "" : table.text(terminal);
}

std::string summary_of(const ScanResult& result) {
  const uint64_t with_pickles = result.files - result.not_examined.size();
  std::string text = counted(result.pickles, "pickle") + " in " + std::to_string(with_pickles) +
                     " of " + counted(result.files, "file");
  if (!result.not_examined.empty()) {
    text += ", " + std::to_string(result.not_examined.size()) + " not examined";
  }
  return text + ": " + to_string(result.worst());
}

int scan_path(const CLI::App& app, const cli::Common& common, const ScanArguments& args,
              const Patterns& allowed, const std::string& path, const std::string& name) {
  Progress progress;
  const cli::InterruptGuard guard(progress);
  ScanResult result = cli::while_shown(progress, common, [&] { return scan(path, &progress); });
  result.allow(allowed);
  if (common.json) {
    nlohmann::json data = json_of(result);
    data["path"] = path;
    cli::print_json("scan", std::move(data));
  } else {
    std::cout << text_of(result, cli::Terminal::of_stdout());
    cli::note(app, common, (name.empty() ? "" : name + ": ") + summary_of(result));
  }
  const GlobalClass failing =
      args.is_dangerous_only ? GlobalClass::dangerous : GlobalClass::unknown;
  return result.worst() >= failing ? cli::kCheckFailed : cli::kDone;
}

int scan_paths(const CLI::App& app, const cli::Common& common, const ScanArguments& args) {
  const Patterns allowed(args.allowed, "--allow");
  return for_each_path(app, common, each_of(args.paths), [&](const OneOfSeveral& each) {
    return scan_path(app, common, args, allowed, each.path,
                     args.paths.size() == 1 ? "" : each.name);
  });
}

}  // namespace

Command add_scan(CLI::App& app, cli::Common& common) {
  CLI::App& sub = *app.add_subcommand(
      "scan", "Names that pickles would import and call: harmless, unknown or dangerous");
  const auto args = std::make_shared<ScanArguments>();
  cli::input_path(sub.add_option("path", args->paths, "A file, or a folder with all that is in it"))
      ->required();
  sub.add_option("--allow", args->allowed,
                 "Unknown names (full MODULE.NAME) to count as harmless. Dangerous names stay\n"
                 "dangerous")
      ->type_name("REGEX")
      ->allow_extra_args(false);
  CLI::Option* dangerous_only = sub.add_flag("--dangerous-only", args->is_dangerous_only,
                                             "Do not fail on unknown names and unreadable content");
  sub.add_flag("--strict", args->is_strict, "Accepted; it is the default")
      ->excludes(dangerous_only);
  return {&sub, [&app, &common, args] { return scan_paths(app, common, *args); }};
}

}  // namespace dsckpt::inspect
