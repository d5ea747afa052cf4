#include "cli/messages.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/text.h"
#include "cli/far_paths.h"
#include "cli/terminal.h"
#include "io/far_files.h"
#include "report/report.h"

namespace dsckpt::cli {
namespace {

// Notes since the last line of JSON. Only one thread adds notes.
std::vector<std::string>& notes_said() {
  static std::vector<std::string> notes;
  return notes;
}

void print_note(const std::string& tool, const std::string& text) {
  std::cerr << tool << ": " << styled(Terminal::of_stderr(), Style::warning, "note:") << " "
            << printable(shown_text(text), Newlines::keep) << "\n";
}

// A note's first name, quoted or a file's at its beginning, and the text around it.
struct Named {
  std::string name;
  std::pair<std::string, std::string> around;
};

Named named(const std::string& text) {
  const size_t quote = text.find('\'');
  if (quote != std::string::npos) {
    const size_t end = text.find('\'', quote + 1);
    if (end != std::string::npos) {
      return {text.substr(quote + 1, end - quote - 1), {text.substr(0, quote), text.substr(end)}};
    }
  }
  const size_t end = std::min(text.find_first_of(" :"), text.size());
  const bool is_file = text.find_first_of("./") < end;
  return is_file ? Named{text.substr(0, end), {"", text.substr(end)}} : Named{"", {text, ""}};
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
  if (!common.quiet) print_note(tool, text);
}

void notes(const CLI::App& app, const Common& common, const std::vector<std::string>& texts) {
  notes_said().insert(notes_said().end(), texts.begin(), texts.end());
  if (common.quiet) return;
  struct Alike {
    std::string first;
    std::vector<std::string> others;  // names
  };
  std::vector<Alike> shown;
  std::map<std::pair<std::string, std::string>, size_t> known;  // texts around names: of `shown`
  for (const std::string& text : texts) {
    Named parts = named(text);
    const auto [found, is_new] = known.try_emplace(std::move(parts.around), shown.size());
    if (is_new) {
      shown.push_back({text, {}});
    } else if (!parts.name.empty()) {
      shown[found->second].others.push_back(std::move(parts.name));
    }
  }
  for (const Alike& alike : shown) {
    const std::string rest = alike.others.empty() ? "" : "; likewise " + some_of(alike.others);
    print_note(app.get_name(), alike.first + rest);
  }
}

}  // namespace dsckpt::cli
