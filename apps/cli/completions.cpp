#include "cli/completions.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

namespace dsckpt::cli {
namespace {

std::string joined(const std::vector<std::string>& words, const std::string& separator) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : separator) + word;
  return out;
}

// Returns `text` with a backslash before each of `characters`.
std::string escaped(const std::string& text, std::string_view characters) {
  std::string out;
  for (const char c : text) {
    if (characters.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

// Quotes for bash and zsh.
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

// Returns the names that may stand for a subcommand.
std::vector<std::string> first_words(const CommandFacts& tool) {
  std::vector<std::string> names = names_of(tool.subcommands);
  for (const ShortName& short_name : tool.short_names) names.push_back(short_name.name);
  return names;
}

bool has_programs(const CommandFacts& tool) {
  return std::any_of(tool.subcommands.begin(), tool.subcommands.end(),
                     [](const CommandFacts& sub) { return sub.is_program; });
}

// Returns the kind of positional arguments.
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
    case ValueKind::tag:
      return "kind=tag";
    case ValueKind::tensor:
      return "kind=tensor";
    case ValueKind::text:
      return "kind=text";
  }
  return "";
}

bool has_tensor(const CommandFacts& command) {
  return std::any_of(
      command.positionals.begin(), command.positionals.end(),
      [](const OptionFacts& positional) { return positional.kind == ValueKind::tensor; });
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
         bash_kind(path) + "\n" +
         (has_tensor(command) ? "      [[ -z $path ]] || kind=tensor\n" : "") +
         "      case $option in\n" + cases + "      esac\n      ;;\n";
}

constexpr const char* kBashStart =
    R"(  local current=${COMP_WORDS[COMP_CWORD]} option='' assigned='' command='' ended='' i
  local kind=none words='' options='' path='' word found
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case ${COMP_WORDS[i]} in
      --) ended=yes && break ;;
)";

constexpr const char* kBashStartEnd = R"(      -*) ;;
      *)
        word=${COMP_WORDS[i]/#\~\//$HOME/}
        [[ -n $path || ! -e $word ]] || path=$word
        ;;
    esac
  done
)";

// Readline breaks words at =, unless COMP_WORDBREAKS lacks it.
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
  if [[ -z $ended && $current == -* && $kind != words && $kind != text && $kind != tag ]]; then
    [[ $current != --* ]] || current=${current//_/-}
    kind=words words=$options
  fi
  case $kind in
    words) mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current") ;;
    folder) mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
    file) mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
    tag)
      for word in "${path:-.}"/*/; do
        word=${word%/} found=("${word%/}"/*_states.pt*) word=${word##*/}
        [[ ! -e ${found[0]} || $word != "$current"* || $word == *[!a-zA-Z0-9._+-]* ]] || COMPREPLY+=("$word")
      done
      ;;
    tensor)
      # Whatever a file calls its tensors, a shell takes these characters as they are.
      while IFS=$'\t' read -r word _; do
        [[ $word != "$current"* || $word == *[!a-zA-Z0-9._/+-]* ]] || COMPREPLY+=("$word")
      done < <("${COMP_WORDS[0]}" list "$path" 2>/dev/null || true)
      ;;
  esac
  [[ $kind != folder && $kind != file ]] || compopt -o filenames 2>/dev/null || true
)";

constexpr const char* kBashAssigned =
    R"(  [[ -z $assigned ]] || COMPREPLY=("${COMPREPLY[@]/#/$assigned}")
}
)";

// Completes the words from the program's name on as a line of their own.
constexpr const char* kBashProgram = R"(  if [[ -n $command ]]; then
    local function=_${command//-/_} at=1
    while [[ ${COMP_WORDS[at]} != "$command" ]]; do ((++at)); done
    declare -F "$function" >/dev/null || _completion_loader "$command" 2>/dev/null || true
    COMP_WORDS=("${COMP_WORDS[@]:at}") COMP_CWORD=$((COMP_CWORD - at))
    ! declare -F "$function" >/dev/null || "$function"
    return
  fi
)";

// Replaces a short name by the words that it stands for.
std::string bash_short_names(const CommandFacts& tool) {
  if (tool.short_names.empty()) return "";
  std::string out = "  local -a long=()\n  case $command in\n";
  for (const ShortName& short_name : tool.short_names) {
    out += "    " + short_name.name + ") long=(" + joined(short_name.stands_for, " ") + ") ;;\n";
  }
  return out + R"(  esac
  if ((${#long[@]})); then
    for ((i = 1; i < COMP_CWORD; ++i)); do [[ ${COMP_WORDS[i]} != "$command" ]] || break; done
    COMP_WORDS=("${COMP_WORDS[@]:0:i}" "${long[@]}" "${COMP_WORDS[@]:i+1}")
    COMP_CWORD=$((COMP_CWORD + ${#long[@]} - 1)) command=${long[0]}
  fi
)";
}

// Functions that read the checkpoint in the command line.
constexpr const char* kZshFunctions = R"zsh(TOOL_path() {
  local word
  for word in "${(@Q)words[2,CURRENT-1]}"; do
    word=${word/#\~\//$HOME/}
    [[ $word == -* || ! -e $word ]] || { REPLY=$word; return 0 }
  done
  return 1
}
TOOL_tags() {
  local REPLY=. folder
  local -a found
  TOOL_path
  for folder in $REPLY/*(/N); do
    found=($folder/*_states.pt*(N))
    (($#found == 0)) || compadd -- ${folder:t}
  done
}
TOOL_tensors() {
  local REPLY
  local -a names
  TOOL_path || return 1
  names=(${(f)"$(NAME list $REPLY 2>/dev/null | cut -f1)"})
  compadd -a names
}
)zsh";

constexpr const char* kFishFunctions = R"fish(function _TOOL_path
  for word in (commandline -opc)[2..-1]
    set word (string replace -r '^~/' "$HOME/" -- $word)
    if not string match -q -- '-*' $word; and test -e $word
      echo $word
      return
    end
  end
  return 1
end
function _TOOL_tags
  set -l folder (_TOOL_path; or echo .)
  for tag in $folder/*/
    set -l found $tag*_states.pt*
    test -n "$found"; and string replace -r '.*/([^/]+)/$' '$1' -- $tag
  end
end
function _TOOL_tensors
  NAME list (_TOOL_path) 2>/dev/null | string replace -r '\t.*' ''
end
)fish";

bool looks_at_checkpoint(const CommandFacts& command) {
  const auto looks = [](const OptionFacts& option) {
    return option.kind == ValueKind::tag || option.kind == ValueKind::tensor;
  };
  return std::any_of(command.options.begin(), command.options.end(), looks) ||
         std::any_of(command.subcommands.begin(), command.subcommands.end(), looks_at_checkpoint);
}

// Returns `text` with the names of the tool and of its functions.
std::string of_tool(const CommandFacts& tool, std::string text) {
  if (!looks_at_checkpoint(tool)) return "";
  const std::pair<std::string, std::string> names[] = {{"TOOL", function_name(tool.name)},
                                                       {"NAME", tool.name}};
  for (const auto& [name, value] : names) {
    for (size_t at = 0; (at = text.find(name, at)) != std::string::npos; at += value.size()) {
      text.replace(at, name.size(), value);
    }
  }
  return text;
}

std::string zsh_action(const std::string& tool, const OptionFacts& option) {
  switch (option.kind) {
    case ValueKind::choice:
      return "(" + joined(option.choices, " ") + ")";
    case ValueKind::folder:
      return "_files -/";
    case ValueKind::file:
      return "_files";
    case ValueKind::tag:
      return function_name(tool) + "_tags";
    case ValueKind::tensor:
      return function_name(tool) + "_tensors";
    case ValueKind::none:
    case ValueKind::text:
      break;
  }
  return " ";  // no completion
}

std::string zsh_option(const std::string& tool, const OptionFacts& option) {
  const std::string what = "[" + escaped(option.description, "[]:\\") + "]" +
                           (option.kind == ValueKind::none ? ""
                                                           : ":" + escaped(option.value, ":\\") +
                                                                 ":" + zsh_action(tool, option));
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

std::string zsh_options(const std::string& tool, const CommandFacts& command,
                        const std::string& indent) {
  std::string out;
  for (const OptionFacts& option : command.options)
    out += " \\\n" + indent + zsh_option(tool, option);
  return out;
}

std::string zsh_positionals(const std::string& tool, const CommandFacts& command,
                            const std::string& indent) {
  std::string out;
  size_t number = 0;
  for (const OptionFacts& positional : command.positionals) {
    const std::string place = positional.repeated ? "*" : std::to_string(++number);
    out += " \\\n" + indent +
           quoted(place + ":" + escaped(positional.names.front(), ":\\") + ":" +
                  zsh_action(tool, positional));
  }
  return out;
}

std::string zsh_subcommands(const CommandFacts& tool) {
  std::string out = "  case $state in\n    first)\n      commands=(\n";
  for (const CommandFacts& sub : tool.subcommands) {
    out += "        " + quoted(sub.name + ":" + escaped(sub.description, ":\\")) + "\n";
  }
  for (const ShortName& short_name : tool.short_names) {
    out += "        " +
           quoted(short_name.name + ":" + escaped(joined(short_name.stands_for, " "), ":\\")) +
           "\n";
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
    out += "        " + sub.name + ")\n          _arguments -s -S" +
           zsh_options(tool.name, sub, indent) + zsh_positionals(tool.name, sub, indent) +
           " && ret=0\n          ;;\n";
  }
  for (const ShortName& short_name : tool.short_names) {
    out += "        " + short_name.name + ")\n          words=(" +
           joined(short_name.stands_for, " ") + " \"${(@)words[2,-1]}\")\n          ((CURRENT += " +
           std::to_string(short_name.stands_for.size() - 1) +
           "))\n          _normal && ret=0\n          ;;\n";
  }
  if (!tool.positionals.empty()) {
    out += "        *)\n          _arguments -s -S" + zsh_options(tool.name, tool, indent) +
           zsh_positionals(tool.name, tool, indent) + " && ret=0\n          ;;\n";
  }
  return out + "      esac\n      ;;\n  esac\n";
}

// Quotes for fish.
std::string fish_quoted(const std::string& text) {
  return "'" + escaped(text, "'\\") + "'";
}

std::string fish_option(const CommandFacts& tool, const std::string& start,
                        const OptionFacts& option) {
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
    case ValueKind::tag:
      out += " -x -a '(_" + function_name(tool.name) + "_tags)'";
      break;
    case ValueKind::tensor:
      out += " -x -a '(_" + function_name(tool.name) + "_tensors)'";
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
    out += "      " + joined(first_words(tool), " | ") +
           ") [[ -n $command ]] || command=${COMP_WORDS[i]} ;;\n";
  }
  out += kBashStartEnd;
  if (has_programs(tool)) out += bash_short_names(tool) + kBashProgram;
  out += kBashOption + bash_command(tool, "''");
  for (const CommandFacts& sub : tool.subcommands) {
    if (!sub.is_program) out += bash_command(sub, sub.name);
  }
  out += kBashEnd;
  if (!tool.subcommands.empty()) {
    out +=
        "  if [[ -z $command && $current != -* && ($kind == none || $kind == file) ]]; then\n"
        "    mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -W " +
        quoted(joined(first_words(tool), " ")) + " -- \"$current\")\n  fi\n";
  }
  return out + kBashAssigned + "complete -o default -F " + function_name(tool.name) + " " +
         tool.name + "\n";
}

std::string zsh_completion(const CommandFacts& tool) {
  const std::string function = function_name(tool.name);
  std::string out = "#compdef " + tool.name + "\n" + heading("zsh", tool) +
                    of_tool(tool, kZshFunctions) + function + "() {\n";
  if (tool.subcommands.empty()) {
    out += "  _arguments -s -S" + zsh_options(tool.name, tool, "    ") +
           zsh_positionals(tool.name, tool, "    ") + "\n";
  } else {
    out +=
        "  local curcontext=$curcontext state line ret=1\n  local -a commands\n"
        "  typeset -A opt_args\n  _arguments -C -s -S" +
        zsh_options(tool.name, tool, "    ") +
        " \\\n    '1: :->first' \\\n    '*:: :->rest' && ret=0\n" + zsh_subcommands(tool) +
        "  return ret\n";
  }
  return out + "}\nif [[ $funcstack[1] == _" + tool.name + " ]]; then\n  " + function +
         " \"$@\"\nelse\n  compdef " + function + " " + tool.name + "\nfi\n";
}

std::string fish_completion(const CommandFacts& tool) {
  const std::string start = "complete -c " + tool.name;
  std::string out = heading("fish", tool) + of_tool(tool, kFishFunctions);
  if (tool.subcommands.empty()) {
    if (positional_kind(tool) == ValueKind::none) out += start + " -f\n";
    for (const OptionFacts& option : tool.options) out += fish_option(tool, start, option);
    return out;
  }
  const std::string none =
      start + " -n 'not __fish_seen_subcommand_from " + joined(first_words(tool), " ") + "'";
  for (const CommandFacts& sub : tool.subcommands) {
    out += start + " -n __fish_use_subcommand -a " + sub.name + " -d " +
           fish_quoted(sub.description) + "\n";
  }
  for (const ShortName& short_name : tool.short_names) {
    const std::string stands_for = joined(short_name.stands_for, " ");
    out += start + " -n __fish_use_subcommand -a " + short_name.name + " -d " +
           fish_quoted(stands_for) + "\n" + start + " -n '__fish_seen_subcommand_from " +
           short_name.name +
           "' -x -a '(complete -C (commandline -cp | string replace -r \"^.*?\\\\s" +
           short_name.name + "\\\\s\" \"" + stands_for + " \"))'\n";
  }
  if (positional_kind(tool) == ValueKind::none) out += none + " -f\n";
  for (const OptionFacts& option : tool.options) out += fish_option(tool, none, option);
  if (has_programs(tool)) {
    out += start + " -n 'not __fish_use_subcommand' -x -a '(__fish_complete_subcommand)'\n";
  }
  for (const CommandFacts& sub : tool.subcommands) {
    if (sub.is_program) continue;
    const std::string here = start + " -n '__fish_seen_subcommand_from " + sub.name + "'";
    if (positional_kind(sub) == ValueKind::none) out += here + " -f\n";
    if (has_tensor(sub)) {
      out += start + " -n '__fish_seen_subcommand_from " + sub.name + "; and _" +
             function_name(tool.name) + "_path >/dev/null' -f -a '(_" + function_name(tool.name) +
             "_tensors)'\n";
    }
    for (const OptionFacts& option : sub.options) out += fish_option(tool, here, option);
  }
  return out;
}

}  // namespace dsckpt::cli
