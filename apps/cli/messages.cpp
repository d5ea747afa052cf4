#include "cli/messages.h"

#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/terminal.h"
#include "report/report.h"

namespace dsckpt::cli {

std::string json_line(const std::string& type, nlohmann::json data) {
  return dump({{"schema", kJsonSchema}, {"type", type}, {"data", std::move(data)}}) + "\n";
}

void print_json(const std::string& type, nlohmann::json data) {
  std::cout << json_line(type, std::move(data));
}

void hint(const Common& common, const std::string& text) {
  if (common.quiet || text.empty()) return;
  std::cerr << styled(Terminal::of_stderr(), Style::bold, "hint:") << " " << printable(text)
            << "\n";
}

void note(const CLI::App& app, const Common& common, const std::string& text) {
  if (common.quiet) return;
  std::cerr << app.get_name() << ": " << styled(Terminal::of_stderr(), Style::warning, "note:")
            << " " << printable(text, Newlines::keep) << "\n";
}

}  // namespace dsckpt::cli
