#include "cli/help.h"

#include <CLI/App.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>

#include "cli/cli.h"
#include "cli/option_facts.h"
#include "cli/terminal.h"

namespace dsckpt::cli {
namespace {

constexpr size_t kWidth = 80;  // of the text at the end

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

std::string joined_names(const CLI::Option& option) {
  std::string names;
  for (const std::string& name : option_names(option)) names += (names.empty() ? "" : ",") + name;
  return names;
}

std::string exit_statuses_text() {
  std::string statuses = "Exit status:";
  for (const ExitStatus& status : exit_statuses()) {
    statuses +=
        (status.code == kDone ? " " : ", ") + std::to_string(status.code) + " " + status.meaning;
  }
  return paragraph(statuses + ".", kWidth);
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
    return out + make_footer(app);
  }

  std::string make_description(const CLI::App* app) const override {
    return paragraph(app->get_description(), width_);
  }

  // Prints a tool's footer; subcommands have none.
  std::string make_footer(const CLI::App* app) const override {
    const Examples& examples = examples_of(*app);
    if (examples.commands.empty()) return "";
    std::string out = "\n" + exit_statuses_text() + "\nExamples:\n";
    for (const std::string& command : examples.commands) out += "  " + command + "\n";
    for (const std::string& remark : examples.remarks) out += remark + "\n";
    return out;
  }

  // Aligns further lines with the first word of the arguments.
  std::string make_usage(const CLI::App* app, std::string name) const override {
    const std::string text = Formatter::make_usage(app, std::move(name));
    const size_t begin = text.find_first_not_of('\n');
    if (begin == std::string::npos) return text;
    const size_t end = text.find('\n', begin);
    std::string out = text.substr(0, begin);
    const auto lines = wrapped(text.substr(begin, end - begin), width_);
    for (size_t i = 0; i < lines.size(); ++i) out += (i == 0 ? "" : "\n  ") + lines[i];
    return out + (end == std::string::npos ? "" : text.substr(end));
  }

  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    if (is_positional) return entry(option->get_name(true), option->get_description(), width_);
    // Long names without a short one are aligned with other long names.
    const bool only_long = option->get_lnames().size() == 1 && option->get_snames().empty();
    return entry((only_long ? "    " : "") + joined_names(*option) + make_option_opts(option),
                 option->get_description() + (option->get_required() ? " (required)" : ""), width_);
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string value = value_name(*option);
    if (value.empty()) return "";
    const std::string unless_given = option->get_default_str();
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

std::vector<std::string> option_names(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

std::string value_name(const CLI::Option& option) {
  return option.get_expected_max() == 0 ? "" : option.get_type_name();
}

std::shared_ptr<CLI::FormatterBase> help_formatter(size_t width) {
  return std::make_shared<HelpFormatter>(width);
}

}  // namespace dsckpt::cli
