#include "cli/help.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "cli/cli.h"
#include "cli/terminal.h"

namespace dsckpt::cli {
namespace {

constexpr const char* kExamples = "Examples:\n";
constexpr size_t kWidth = 80;  // of what ends the text

std::string entry(const std::string& names, const std::string& description, size_t width) {
  const size_t indent = std::min<size_t>(30, width * 3 / 8);
  std::string out = "  " + names;
  const bool beside = out.size() + 2 <= indent;
  out += beside ? std::string(indent - out.size(), ' ') : "\n" + std::string(indent, ' ');
  const std::vector<std::string> lines = wrapped(description, width - indent);
  for (size_t i = 0; i < lines.size(); ++i) {
    out += (i == 0 ? "" : std::string(indent, ' ')) + lines[i] + "\n";
  }
  return out;
}

std::string paragraph(const std::string& text, size_t width) {
  std::string out;
  for (const std::string& line : wrapped(text, width)) out += line + "\n";
  return out;
}

std::string first_part(const std::string& text, char separator) {
  return text.substr(0, text.find(separator));
}

class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(size_t width) : width_(width) {}

  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    std::string groups = make_groups(app, mode);
    while (groups.ends_with("\n\n")) groups.pop_back();
    groups = CLI::detail::find_and_replace(groups, "\n\n\n", "\n\n");
    std::string out = make_description(app) + "\n" + make_usage(app, name);
    out += make_positionals(app) + make_subcommands(app, mode) + groups;
    return out + (app->get_footer().empty() ? "" : "\n" + make_footer(app));
  }

  std::string make_description(const CLI::App* app) const override {
    return paragraph(app->get_description(), width_);
  }

  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    std::string names = make_option_name(option, is_positional);
    if (!is_positional && option->get_lnames().size() == 1 && option->get_snames().empty()) {
      names = "    " + names;  // under the long names that have a short one
    }
    if (!is_positional) names += make_option_opts(option);
    const bool must = option->get_required() && !is_positional;
    return entry(names, option->get_description() + (must ? " (required)" : ""), width_);
  }

  // Without "{1}", the value that a flag has where none is given.
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string names = CLI::Formatter::make_option_name(option, is_positional);
    const size_t open = names.find('{');
    if (open != std::string::npos) names.erase(open, names.find('}', open) + 1 - open);
    return names;
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string value = value_name(*option);
    if (value.empty()) return "";
    const std::string unless_given = default_text(*option);
    const bool many = option->get_expected_max() == CLI::detail::expected_max_vector_size;
    return " " + value + (unless_given.empty() ? "" : "=" + unless_given) + (many ? " ..." : "");
  }

  std::string make_subcommand(const CLI::App* sub) const override {
    return entry(sub->get_display_name(true), sub->get_description(), width_);
  }

 private:
  size_t width_;
};

}  // namespace

const std::vector<ExitStatus>& exit_statuses() {
  static const std::vector<ExitStatus> kStatuses = {
      {kDone, "done"},
      {kCheckFailed, "a check answered no"},
      {kUsage, "usage"},
      {kBadCheckpoint, "bad checkpoint"},
      {kIo, "I/O (a retry may help)"},
      {kBug, "a bug in this tool"},
      {kInterrupted, "interrupted"},
  };
  return kStatuses;
}

std::string footer(const std::string& examples) {
  std::string statuses = "Exit status:";
  for (const ExitStatus& status : exit_statuses()) {
    statuses +=
        (status.code == kDone ? " " : ", ") + std::to_string(status.code) + " " + status.meaning;
  }
  return paragraph(statuses + ".", kWidth) + "\n" + kExamples + examples;
}

std::vector<std::string> example_lines(const CLI::App& app) {
  const std::string text = app.get_footer();
  const size_t heading = text.find(kExamples);
  std::vector<std::string> lines;
  if (heading == std::string::npos) return lines;
  std::istringstream in(text.substr(heading + std::string(kExamples).size()));
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string value_name(const CLI::Option& option) {
  if (option.get_expected_max() == 0) return "";
  if (!option.get_option_text().empty()) return first_part(option.get_option_text(), '=');
  const std::string type = first_part(option.get_type_name(), ':');  // before what checks say
  if (type == "INT" || type == "UINT") return "N";
  return type;
}

std::string default_text(const CLI::Option& option) {
  const std::string& text = option.get_option_text();
  if (text.empty()) return option.get_default_str();
  return text.find('=') == std::string::npos ? "" : text.substr(text.find('=') + 1);
}

std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();  // "TEXT:{a,b}"
  const size_t open = type.find('{');
  const size_t close = type.find('}', std::min(open, type.size()));
  if (close == std::string::npos) return {};
  return CLI::detail::split(type.substr(open + 1, close - open - 1), ',');
}

std::shared_ptr<CLI::FormatterBase> help_formatter(size_t width) {
  return std::make_shared<HelpFormatter>(width);
}

}  // namespace dsckpt::cli
