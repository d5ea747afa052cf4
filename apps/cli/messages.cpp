#include "cli/messages.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/json.h"
#include "cli/far_paths.h"
#include "cli/terminal.h"
#include "io/far_files.h"
#include "report/report.h"

namespace dsckpt::cli {
namespace {

// Since the last line of JSON. One thread says them.
std::vector<std::string>& notes_said() {
  static std::vector<std::string> notes;
  return notes;
}

}  // namespace

std::string json_line(const std::string& type, nlohmann::json data) {
  return shown_text(dump({{"schema", kJsonSchema}, {"type", type}, {"data", std::move(data)}})) +
         "\n";
}

void print_json(const std::string& type, nlohmann::json data) {
  const std::vector<std::string> said = std::exchange(notes_said(), {});
  if (type != "error" || !said.empty()) {
    nlohmann::json& notes = data["notes"];
    if (notes.is_null()) notes = nlohmann::json::array();
    for (const std::string& note : said) {
      if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
    }
  }
  nlohmann::json line = {{"schema", kJsonSchema}, {"type", type}, {"data", std::move(data)}};
  if (const std::optional<nlohmann::json> traffic = far_traffic_json()) {
    line["object_store"] = *traffic;
  }
  std::cout << shown_text(dump(line)) << "\n";
}

void hint(const Common& common, const std::string& text) {
  if (common.quiet || text.empty()) return;
  std::cerr << styled(Terminal::of_stderr(), Style::bold, "hint:") << " "
            << printable(shown_text(text)) << "\n";
}

void note(const CLI::App& app, const Common& common, const std::string& text) {
  note(app.get_name(), common, text);
}

void note(const std::string& tool, const Common& common, const std::string& text) {
  notes_said().push_back(text);
  if (common.quiet) return;
  std::cerr << tool << ": " << styled(Terminal::of_stderr(), Style::warning, "note:") << " "
            << printable(shown_text(text), Newlines::keep) << "\n";
}

}  // namespace dsckpt::cli
