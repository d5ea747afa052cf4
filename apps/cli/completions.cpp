#include "cli/completions.h"

#include <algorithm>
#include <string_view>
#include <vector>

namespace dsckpt::cli {
namespace {

std::string joined(const std::vector<std::string>& words, const std::string& separator) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : separator) + word;
  return out;
}

// `text` with a backslash before each of `characters`.
std::string escaped(const std::string& text, std::string_view characters) {
  std::string out;
  for (const char c : text) {
    if (characters.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

// In single quotes of bash and zsh.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string function_name(const std::string& tool) {
  std::string name = "_" + tool;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string heading(const std::string& shell, const CommandFacts& tool) {
  return "# Completion of " + tool.name + " for " + shell + ", printed by `" + tool.name +
         " --generate " + shell + "`.\n";
}

std::vector<std::string> names_of(const std::vector<CommandFacts>& commands) {
  std::vector<std::string> names;
  for (const CommandFacts& command : commands) names.push_back(command.name);
  return names;
}

bool has_programs(const CommandFacts& tool) {
  return std::any_of(tool.subcommands.begin(), tool.subcommands.end(),
                     [](const CommandFacts& sub) { return sub.is_program; });
}

// What the words that are no options are.
ValueKind positional_kind(const CommandFacts& command) {
  ValueKind kind = ValueKind::none;
  for (const OptionFacts& positional : command.positionals) {
    if (positional.kind == ValueKind::file) return ValueKind::file;
    if (positional.kind == ValueKind::folder) kind = ValueKind::folder;
  }
  return kind;
}

std::string bash_kind(const OptionFacts& option) {
  switch (option.kind) {
    case ValueKind::none:
      return "kind=none";
    case ValueKind::choice:
      return "kind=words words=" + quoted(joined(option.choices, " "));
    case ValueKind::folder:
      return "kind=folder";
    case ValueKind::file:
      return "kind=file";
    case ValueKind::text:
      return "kind=text";
  }
  return "";
}

std::string bash_command(const CommandFacts& command, const std::string& pattern) {
  std::vector<std::string> names;
  std::string cases;
  for (const OptionFacts& option : command.options) {
    names.insert(names.end(), option.names.begin(), option.names.end());
    if (option.kind == ValueKind::none) continue;
    cases += "        " + joined(option.names, " | ") + ") " + bash_kind(option) + " ;;\n";
  }
  OptionFacts path;
  path.kind = positional_kind(command);
  return "    " + pattern + ")\n      options=" + quoted(joined(names, " ")) + "\n      " +
         bash_kind(path) + "\n" + "      case $option in\n" + cases + "      esac\n      ;;\n";
}

constexpr const char* kBashStart =
    R"(  local current=${COMP_WORDS[COMP_CWORD]} option='' assigned='' command='' ended='' i
  local kind=none words='' options=''
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case ${COMP_WORDS[i]} in
      --) ended=yes && break ;;
)";

constexpr const char* kBashStartEnd = R"(    esac
  done
)";

// Readline breaks words at = unless COMP_WORDBREAKS was told not to.
constexpr const char* kBashOption = R"(  if [[ -z $ended ]]; then
    if [[ $current == --*=* ]]; then
      option=${current%%=*} assigned=${current%%=*}= current=${current#*=}
    elif [[ $current == = ]]; then
      option=${COMP_WORDS[COMP_CWORD - 1]} current=''
    elif ((COMP_CWORD > 2)) && [[ ${COMP_WORDS[COMP_CWORD - 1]} == = ]]; then
      option=${COMP_WORDS[COMP_CWORD - 2]}
    elif [[ ${COMP_WORDS[COMP_CWORD - 1]} == -* ]]; then
      option=${COMP_WORDS[COMP_CWORD - 1]}
    fi
    option=${option//_/-}
  fi
  case $command in
)";

constexpr const char* kBashEnd = R"(  esac
  COMPREPLY=()
  if [[ -z $ended && $current == -* && $kind != words && $kind != text ]]; then
    [[ $current != --* ]] || current=${current//_/-}
    kind=words words=$options
  fi
  case $kind in
    words) mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current") ;;
    folder) mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
    file) mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
  esac
  [[ $kind != folder && $kind != file ]] || compopt -o filenames 2>/dev/null || true
)";

constexpr const char* kBashAssigned =
    R"(  [[ -z $assigned ]] || COMPREPLY=("${COMPREPLY[@]/#/$assigned}")
}
)";

// The words from the program's name on are completed as if they were all.
constexpr const char* kBashProgram = R"(  if [[ -n $command ]]; then
    local function=_${command//-/_} at=1
    while [[ ${COMP_WORDS[at]} != "$command" ]]; do ((++at)); done
    declare -F "$function" >/dev/null || _completion_loader "$command" 2>/dev/null || true
    COMP_WORDS=("${COMP_WORDS[@]:at}") COMP_CWORD=$((COMP_CWORD - at))
    ! declare -F "$function" >/dev/null || "$function"
    return
  fi
)";

std::string zsh_action(const OptionFacts& option) {
  switch (option.kind) {
    case ValueKind::choice:
      return "(" + joined(option.choices, " ") + ")";
    case ValueKind::folder:
      return "_files -/";
    case ValueKind::file:
      return "_files";
    case ValueKind::none:
    case ValueKind::text:
      break;
  }
  return " ";  // nothing that could be completed
}

std::string zsh_option(const OptionFacts& option) {
  const std::string what = "[" + escaped(option.description, "[]:\\") + "]" +
                           (option.kind == ValueKind::none
                                ? ""
                                : ":" + escaped(option.value, ":\\") + ":" + zsh_action(option));
  std::vector<std::string> names;
  for (const std::string& name : option.names) {
    const bool is_long = name.starts_with("--");
    names.push_back(name + (option.kind == ValueKind::none ? "" : is_long ? "=" : "+"));
  }
  if (option.repeated) {
    std::string out;
    for (const std::string& name : names) out += " " + quoted("*" + name + what);
    return out.substr(1);
  }
  if (names.size() == 1) return quoted(names.front() + what);
  return quoted("(" + joined(option.names, " ") + ")") + "{" + joined(names, ",") + "}" +
         quoted(what);
}

std::string zsh_options(const CommandFacts& command, const std::string& indent) {
  std::string out;
  for (const OptionFacts& option : command.options) out += " \\\n" + indent + zsh_option(option);
  return out;
}

std::string zsh_positionals(const CommandFacts& command, const std::string& indent) {
  std::string out;
  size_t number = 0;
  for (const OptionFacts& positional : command.positionals) {
    const std::string place = positional.repeated ? "*" : std::to_string(++number);
    out += " \\\n" + indent +
           quoted(place + ":" + escaped(positional.names.front(), ":\\") + ":" +
                  zsh_action(positional));
  }
  return out;
}

std::string zsh_subcommands(const CommandFacts& tool) {
  std::string out = "  case $state in\n    first)\n      commands=(\n";
  for (const CommandFacts& sub : tool.subcommands) {
    out += "        " + quoted(sub.name + ":" + escaped(sub.description, ":\\")) + "\n";
  }
  out += "      )\n      _describe -t commands command commands && ret=0\n";
  if (!tool.positionals.empty()) out += "      _files && ret=0\n";
  out += "      ;;\n    rest)\n      case $words[1] in\n";
  const std::string indent(12, ' ');
  for (const CommandFacts& sub : tool.subcommands) {
    if (sub.is_program) {
      out += "        " + sub.name + ")\n          _normal && ret=0\n          ;;\n";
      continue;
    }
    out += "        " + sub.name + ")\n          _arguments -s -S" + zsh_options(sub, indent) +
           zsh_positionals(sub, indent) + " && ret=0\n          ;;\n";
  }
  if (!tool.positionals.empty()) {
    out += "        *)\n          _arguments -s -S" + zsh_options(tool, indent) +
           zsh_positionals(tool, indent) + " && ret=0\n          ;;\n";
  }
  return out + "      esac\n      ;;\n  esac\n";
}

// In single quotes of fish.
std::string fish_quoted(const std::string& text) {
  return "'" + escaped(text, "'\\") + "'";
}

std::string fish_option(const std::string& start, const OptionFacts& option) {
  std::string out = start;
  for (const std::string& name : option.names) {
    out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  switch (option.kind) {
    case ValueKind::none:
      break;
    case ValueKind::choice:
      out += " -x -a " + fish_quoted(joined(option.choices, " "));
      break;
    case ValueKind::folder:
      out += " -x -a '(__fish_complete_directories)'";
      break;
    case ValueKind::file:
      out += " -r -F";
      break;
    case ValueKind::text:
      out += " -x";
      break;
  }
  return out + " -d " + fish_quoted(option.description) + "\n";
}

}  // namespace

std::string bash_completion(const CommandFacts& tool) {
  std::string out = heading("bash", tool) + function_name(tool.name) + "() {\n" + kBashStart;
  if (!tool.subcommands.empty()) {
    out += "      " + joined(names_of(tool.subcommands), " | ") +
           ") [[ -n $command ]] || command=${COMP_WORDS[i]} ;;\n";
  }
  out += kBashStartEnd;
  if (has_programs(tool)) out += kBashProgram;
  out += kBashOption + bash_command(tool, "''");
  for (const CommandFacts& sub : tool.subcommands) {
    if (!sub.is_program) out += bash_command(sub, sub.name);
  }
  out += kBashEnd;
  if (!tool.subcommands.empty()) {
    out +=
        "  if [[ -z $command && $current != -* && ($kind == none || $kind == file) ]]; then\n"
        "    mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -W " +
        quoted(joined(names_of(tool.subcommands), " ")) + " -- \"$current\")\n  fi\n";
  }
  return out + kBashAssigned + "complete -o default -F " + function_name(tool.name) + " " +
         tool.name + "\n";
}

std::string zsh_completion(const CommandFacts& tool) {
  const std::string function = function_name(tool.name);
  std::string out = "#compdef " + tool.name + "\n" + heading("zsh", tool) + function + "() {\n";
  if (tool.subcommands.empty()) {
    out += "  _arguments -s -S" + zsh_options(tool, "    ") + zsh_positionals(tool, "    ") + "\n";
  } else {
    out +=
        "  local curcontext=$curcontext state line ret=1\n  local -a commands\n"
        "  typeset -A opt_args\n  _arguments -C -s -S" +
        zsh_options(tool, "    ") + " \\\n    '1: :->first' \\\n    '*:: :->rest' && ret=0\n" +
        zsh_subcommands(tool) + "  return ret\n";
  }
  return out + "}\nif [[ $funcstack[1] == _" + tool.name + " ]]; then\n  " + function +
         " \"$@\"\nelse\n  compdef " + function + " " + tool.name + "\nfi\n";
}

std::string fish_completion(const CommandFacts& tool) {
  const std::string start = "complete -c " + tool.name;
  std::string out = heading("fish", tool);
  if (tool.subcommands.empty()) {
    if (positional_kind(tool) == ValueKind::none) out += start + " -f\n";
    for (const OptionFacts& option : tool.options) out += fish_option(start, option);
    return out;
  }
  const std::string none = start + " -n 'not __fish_seen_subcommand_from " +
                           joined(names_of(tool.subcommands), " ") + "'";
  for (const CommandFacts& sub : tool.subcommands) {
    out += start + " -n __fish_use_subcommand -a " + sub.name + " -d " +
           fish_quoted(sub.description) + "\n";
  }
  if (positional_kind(tool) == ValueKind::none) out += none + " -f\n";
  for (const OptionFacts& option : tool.options) out += fish_option(none, option);
  if (has_programs(tool)) {
    out += start + " -n 'not __fish_use_subcommand' -x -a '(__fish_complete_subcommand)'\n";
  }
  for (const CommandFacts& sub : tool.subcommands) {
    if (sub.is_program) continue;
    const std::string here = start + " -n '__fish_seen_subcommand_from " + sub.name + "'";
    if (positional_kind(sub) == ValueKind::none) out += here + " -f\n";
    for (const OptionFacts& option : sub.options) out += fish_option(here, option);
  }
  return out;
}

}  // namespace dsckpt::cli
