#include "cli/messages.h"

#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/json.h"
#include "cli/far_paths.h"
#include "cli/terminal.h"
#include "io/far_files.h"
#include "report/report.h"

namespace dsckpt::cli {

std::string json_line(const std::string& type, nlohmann::json data) {
  return shown_text(dump({{"schema", kJsonSchema}, {"type", type}, {"data", std::move(data)}})) +
         "\n";
}

void print_json(const std::string& type, nlohmann::json data) {
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
  if (common.quiet) return;
  std::cerr << tool << ": " << styled(Terminal::of_stderr(), Style::warning, "note:") << " "
            << printable(shown_text(text), Newlines::keep) << "\n";
}

}  // namespace dsckpt::cli
