#include "cli/man_page.h"

#include <algorithm>
#include <cctype>

#include "cli/help.h"
#include "cli/terminal.h"

namespace dsckpt::cli {
namespace {

// Escapes text for troff. Users type hyphens, so they must not become dashes.
std::string literal(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '\\':
        out += "\\e";
        break;
      case '-':
        out += "\\-";
        break;
      case '`':
        out += "\\(ga";
        break;
      case '\'':
        out += "\\(aq";
        break;
      case '^':
        out += "\\(ha";
        break;
      case '~':
        out += "\\(ti";
        break;
      case '"':
        out += "\\(dq";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string bold(const std::string& text) {
  return "\\fB" + literal(text) + "\\fR";
}

std::string italic(const std::string& text) {
  return "\\fI" + literal(text) + "\\fR";
}

// Formats a sentence: text between backquotes is bold.
std::string prose(const std::string& text) {
  std::string out;
  for (size_t at = 0;;) {
    const size_t open = text.find('`', at);
    const size_t close = open == std::string::npos ? open : text.find('`', open + 1);
    if (close == std::string::npos) return out + literal(text.substr(at));
    out += literal(text.substr(at, open - at)) + bold(text.substr(open + 1, close - open - 1));
    at = close + 1;
  }
}

// Formats whole lines so that none looks like a request.
std::string lines(const std::string& text) {
  std::string out;
  for (const std::string& line : wrapped(text, 78)) {
    out += (line.starts_with('.') ? "\\&" : "") + line + "\n";
  }
  return out;
}

std::string sentence(const std::string& text) {
  return lines(prose(text) + (text.empty() || text.ends_with('.') ? "" : "."));
}

std::string synopsis(const std::string& name, const CommandFacts& command) {
  std::string out = bold(name);
  for (const OptionFacts& option : command.options) {
    if (option.required) out += " " + bold(option.names.back()) + " " + italic(option.value);
  }
  out += " [" + italic("OPTIONS") + "]";
  for (const OptionFacts& positional : command.positionals) {
    const std::string one = italic(positional.names.front()) + (positional.repeated ? "..." : "");
    out += positional.required ? " " + one : " [" + one + "]";
  }
  return lines(out);
}

std::string entry(const OptionFacts& option, bool is_positional) {
  std::string out = ".TP\n";
  for (size_t i = 0; i < option.names.size(); ++i) {
    out += i == 0 ? "" : ", ";
    out += is_positional ? italic(option.names[i]) : bold(option.names[i]);
  }
  if (!is_positional && !option.value.empty()) out += " " + italic(option.value);
  out += "\n" + sentence(option.description);
  if (!option.choices.empty()) {
    std::string values;
    for (const std::string& choice : option.choices) {
      values += (values.empty() ? "" : ", ") + bold(choice);
    }
    out += lines("One of " + values + ".");
  }
  if (!option.unless_given.empty()) out += "Default: " + bold(option.unless_given) + ".\n";
  if (option.required && !is_positional) out += "Required.\n";
  if (option.repeated) out += "May be given more than once.\n";
  return out;
}

std::string entries(const CommandFacts& command) {
  std::string out;
  for (const OptionFacts& positional : command.positionals) out += entry(positional, true);
  for (const OptionFacts& option : command.options) out += entry(option, false);
  return out;
}

bool has(const CommandFacts& tool, const OptionFacts& option) {
  return std::any_of(tool.options.begin(), tool.options.end(), [&](const OptionFacts& other) {
    return other.names == option.names && other.description == option.description;
  });
}

// Options that all subcommands share with the tool are explained once.
std::string subsection(const CommandFacts& tool, CommandFacts sub) {
  const auto shared =
      std::stable_partition(sub.options.begin(), sub.options.end(),
                            [&](const OptionFacts& option) { return !has(tool, option); });
  std::string names;
  for (auto option = shared; option != sub.options.end(); ++option) {
    names += (names.empty() ? "" : ", ") + bold(option->names.back());
  }
  sub.options.erase(shared, sub.options.end());
  std::string out = ".SS " + literal(sub.name) + "\n" + sentence(sub.description) + entries(sub);
  if (!names.empty()) out += ".PP\n" + lines("Also " + names + ", as above.");
  return out;
}

std::string examples_section(const Examples& examples) {
  std::string out = ".SH EXAMPLES\n.EX\n";
  for (const std::string& command : examples.commands) out += literal(command) + "\n";
  out += ".EE\n";
  if (!examples.remarks.empty()) out += ".PP\n";
  for (const std::string& remark : examples.remarks) out += lines(prose(remark));
  return out;
}

std::string exit_status() {
  std::string out = ".SH EXIT STATUS\n";
  for (const ExitStatus& status : exit_statuses()) {
    out += ".TP\n" + bold(std::to_string(status.code)) + "\n" + sentence(status.meaning);
  }
  return out;
}

std::string environment() {
  return ".SH ENVIRONMENT\n"
         ".TP\n" +
         bold("NO_COLOR") + "\nIf it is set and not empty, no colours, unless\n" +
         bold("--color=always") + " asks for them.\n.TP\n" + bold("CLICOLOR_FORCE") +
         "\nIf it is set and not 0, colours also where the output is not a terminal.\n.TP\n" +
         bold("COLUMNS") +
         "\n"
         "The width of a terminal that does not report it.\n"
         ".TP\n" +
         bold("TERM") + "\nA terminal that is " + bold("dumb") + " gets no colours.\n";
}

std::string see_also(const CommandFacts& tool) {
  std::string out;
  for (const char* name : {"ckpt-inspect", "ckpt-pack", "dsckpt", "reshard", "to-dcp",
                           "to-universal", "zero-to-fp32"}) {
    if (name == tool.name) continue;
    out += (out.empty() ? ".SH SEE ALSO\n" : ",\n") + bold(name) + "(1)";
  }
  return out + "\n";
}

}  // namespace

std::string man_page(const CommandFacts& tool, const std::string& version) {
  std::string title = tool.name;
  std::transform(title.begin(), title.end(), title.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  std::string what = tool.description;
  if (what.ends_with('.')) what.pop_back();
  std::string out = ".TH " + literal(title) + " 1 \"\" \"dsckpt " + version + "\" \"dsckpt\"\n";
  out += ".SH NAME\n" + literal(tool.name) + " \\- " + prose(what) + "\n";

  out += ".SH SYNOPSIS\n";
  std::vector<std::string> calls;
  if (!tool.needs_subcommand) calls.push_back(synopsis(tool.name, tool));
  for (const CommandFacts& sub : tool.subcommands) {
    calls.push_back(synopsis(tool.name + " " + sub.name, sub));
  }
  for (const std::string& call : calls) out += (&call == &calls.front() ? "" : ".PP\n") + call;
  out += ".SH DESCRIPTION\n" + sentence(tool.description);
  out +=
      ".PP\n" +
      lines(
          "An option may be abbreviated if it is unambiguous, and its hyphens may be underscores.");
  out += ".SH OPTIONS\n" + entries(tool);
  if (!tool.subcommands.empty()) out += ".SH SUBCOMMANDS\n";
  for (const CommandFacts& sub : tool.subcommands) out += subsection(tool, sub);
  out += exit_status();
  if (!tool.examples.commands.empty()) out += examples_section(tool.examples);
  return out + environment() + see_also(tool);
}

}  // namespace dsckpt::cli
