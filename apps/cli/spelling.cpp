#include "cli/spelling.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <system_error>

#include "cli/options.h"
#include "dsckpt/error.h"

namespace dsckpt::cli {
namespace {

bool is_long_option(const std::string& argument) {
  return argument.size() > 2 && argument.starts_with("--");
}

const CLI::App* subcommand(const CLI::App& app, const std::string& name) {
  for (const CLI::App* sub : app.get_subcommands({})) {
    if (sub->check_name(name)) return sub;
  }
  return nullptr;
}

std::vector<std::string> long_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// Other programs' options for degrees of parallelism. They are not abbreviations of options here.
constexpr std::string_view kDegrees[] = {"--tp", "--pp", "--tensor-model-parallel-size",
                                         "--pipeline-model-parallel-size"};

// Returns the names that --help shows.
std::vector<std::string> shown_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const std::string& name : long_names(app)) {
    if (!app.get_option(name)->get_group().empty()) names.push_back(name);
  }
  return names;
}

std::string name_part(const std::string& argument) {
  return argument.substr(0, argument.find('='));
}

std::vector<std::string> that_begin_with(const std::vector<std::string>& names,
                                         const std::string& beginning) {
  std::vector<std::string> found;
  std::copy_if(names.begin(), names.end(), std::back_inserter(found),
               [&](const std::string& name) { return name.starts_with(beginning); });
  // A shorter beginning does not mean the options of object stores (far_paths.h).
  constexpr std::string_view kFar = "--s3";
  if (!beginning.starts_with(kFar)) {
    std::erase_if(found, [&](const std::string& name) { return name.starts_with(kFar); });
  }
  return found;
}

// Returns the names that `beginning` may stand for. The tool's own names come first: the replaced
// script knows no others.
std::vector<std::string> meant_by(const CLI::App& app, const std::string& beginning) {
  std::vector<std::string> found = that_begin_with(long_names(app), beginning);
  std::vector<std::string> own = found;
  std::erase_if(own, [&](const std::string& name) {
    return app.get_option(name)->get_group() == kCommonGroup;
  });
  return own.size() == 1 ? own : found;
}

std::string canonical_option(const CLI::App& app, const std::string& argument) {
  const std::vector<std::string> known = long_names(app);
  std::string name = name_part(argument);
  const std::string value = argument.substr(name.size());
  std::replace(name.begin(), name.end(), '_', '-');
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    const std::vector<std::string> matches = meant_by(app, name);
    if (matches.size() == 1 && !is_degree(name)) name = matches.front();
  }
  return name + value;
}

// Python programs write flags as "--flag True" and "--flag False", which become the flag and
// nothing.
void take_boolean(const CLI::App& app, std::vector<std::string>& arguments, size_t& at) {
  const CLI::Option* option = app.get_option_no_throw(arguments[at]);
  if (option == nullptr || option->get_expected_max() != 0) return;
  if (at + 1 == arguments.size()) return;
  const std::string& next = arguments[at + 1];
  const bool is_false = next == "False" || next == "false";
  if (!is_false && next != "True" && next != "true") return;
  const auto flag = arguments.begin() + static_cast<std::ptrdiff_t>(at);
  arguments.erase(is_false ? flag : flag + 1, flag + 2);
  if (is_false) --at;
}

// The number of letters to insert, delete, replace or swap so that `a` becomes `b`, or a beginning
// of `b`.
struct Distance {
  size_t whole;
  size_t beginning;
};

Distance distance(const std::string& a, const std::string& b) {
  std::vector<size_t> before;
  std::vector<size_t> above(b.size() + 1);
  std::iota(above.begin(), above.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    std::vector<size_t> row(b.size() + 1, i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before = std::move(above);
    above = std::move(row);
  }
  return {above.back(), *std::min_element(above.begin(), above.end())};
}

// Returns the names that `word` begins, else the most similar name.
std::vector<std::string> likely(const std::vector<std::string>& names, const std::string& word) {
  std::vector<std::string> found = that_begin_with(names, word);
  if (!found.empty()) return found;
  const size_t letters = word.size() - std::min(word.size(), word.find_first_not_of('-'));
  const size_t most = (letters + 1) / 3;
  for (const auto measure : {&Distance::whole, &Distance::beginning}) {
    size_t best = most + 1;
    for (const std::string& name : names) {
      const size_t steps = distance(word, name).*measure;
      if (steps >= best) continue;
      best = steps;
      found = {name};
    }
    if (!found.empty()) break;
  }
  return found;
}

// Other programs' name of an option, and the name here.
struct Synonym {
  std::string_view theirs;
  std::string_view ours;
};
constexpr Synonym kSynonyms[] = {
    {"--world-size", "--dp"},
    {"--num-gpus", "--dp"},
    {"--gpus", "--dp"},
    {"--nproc-per-node", "--dp"},
    {"--target-dp", "--dp"},
    {"--data-parallel-size", "--dp"},
    {"--dp-world-size", "--dp"},
    {"--num-processes", "--dp"},
    {"--zero-stage", "--stage"},
    {"--deepspeed-config", "--ds-config"},
    {"--deepspeed", "--ds-config"},
    {"--average-with", "--average"},
    {"--weights", "--weights-from"},
    {"--init-from", "--weights-from"},
    {"--torch-dtype", "--dtype"},
    {"--dtype", "--as"},
    {"--precision", "--dtype"},
    {"--num-workers", "--threads"},
    {"--jobs", "--threads"},
    {"--overwrite", "--force"},
    {"--exist-ok", "--force"},
    {"--safetensors", "--safe-serialization"},
    {"--safetensor", "--safe-serialization"},
    {"--safe-tensors", "--safe-serialization"},
    {"--filter", "--match"},
    {"--grep", "--match"},
    {"--pattern", "--match"},
    {"--step", "--tag"},
    {"--checkpoint-name", "--tag"},
};

constexpr std::string_view kPaths[] = {"--checkpoint-dir", "--checkpoint", "--output-dir",
                                       "--output-file",    "--output",     "--input-folder",
                                       "--output-folder",  "--input",      "--path"};

// Returns the name here of another program's `word` if `names` has it, else similar names.
std::vector<std::string> meant_by(const std::vector<std::string>& names, const std::string& word) {
  for (const Synonym& synonym : kSynonyms) {
    if (synonym.theirs != word) continue;
    if (std::find(names.begin(), names.end(), synonym.ours) != names.end()) {
      return {std::string(synonym.ours)};
    }
  }
  return likely(names, word);
}

// Returns "'a', 'b' or 'c'".
std::string listed_words(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < names.size(); ++i) {
    out += i == 0 ? "" : i + 1 == names.size() ? " or " : ", ";
    out += "'" + names[i] + "'";
  }
  return out;
}

std::vector<std::string> names_of_commands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands({})) names.push_back(sub->get_name());
  return names;
}

std::string commands_of(const CLI::App& app) {
  return "the commands are " + listed_words(names_of_commands(app)) + ".";
}

std::string question(const std::vector<std::string>& names) {
  return names.empty() ? "" : "did you mean " + listed_words(names) + "?";
}

}  // namespace

namespace {

bool is_word(const std::string& argument) {
  return !argument.starts_with("-");
}

// Checks the words after `help`, which must be one command.
void check_help(const CLI::App& app, const std::vector<std::string>& words) {
  if (words.empty() || !is_word(words[0])) return;
  const CLI::App* command = subcommand(app, words[0]);
  if (command == nullptr) {
    const std::string meant = did_you_mean(app, {words[0]});
    throw UsageError("there is no command '" + words[0] + "'")
        .with_hint(meant.empty() ? commands_of(app) : meant);
  }
  if (words.size() < 2 || !is_word(words[1])) return;
  throw UsageError(command->get_name() + " has no command '" + words[1] + "'");
}

}  // namespace

std::vector<std::string> canonical_arguments(const CLI::App& app,
                                             std::vector<std::string> arguments) {
  if (!arguments.empty() && arguments.front() == "help" && !app.get_subcommands({}).empty()) {
    const auto is_other = [](const std::string& argument) { return argument != "help"; };
    arguments.erase(arguments.begin(), std::find_if(arguments.begin(), arguments.end(), is_other));
    check_help(app, arguments);
    arguments.insert(arguments.begin() + (arguments.empty() ? 0 : 1), "--help");
  }
  // "CHECKPOINT verify" is swapped, unless a file has the first name.
  std::error_code unreadable;
  if (arguments.size() > 1 && !arguments[0].starts_with("-") && !subcommand(app, arguments[0]) &&
      subcommand(app, arguments[1]) && !std::filesystem::exists(arguments[1], unreadable)) {
    std::swap(arguments[0], arguments[1]);
  }
  const CLI::App* command = &app;
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string& argument = arguments[i];
    if (argument == "--") break;
    if (is_long_option(argument)) {
      argument = canonical_option(*command, argument);
      take_boolean(*command, arguments, i);
    } else if (argument.size() == 2 && argument.front() == '-') {
      take_boolean(*command, arguments, i);
    } else if (const CLI::App* sub = command == &app ? subcommand(app, argument) : nullptr) {
      command = sub;
    }
  }
  return arguments;
}

std::string unknown_command(const CLI::App& app, const std::vector<std::string>& arguments) {
  if (app.get_require_subcommand_min() == 0) return "";
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (is_word(arguments[i])) return subcommand(app, arguments[i]) ? "" : arguments[i];
    const CLI::Option* option = app.get_option_no_throw(name_part(arguments[i]));
    if (option == nullptr) return "";
    // The program itself answers these, whatever words follow.
    const std::string& name = arguments[i];
    if (name == "-h" || name == "--help" || name == "--version") return "";
    if (option->get_expected_max() > 0 && name == name_part(name)) ++i;
  }
  return "";
}

std::string unknown_option(const CLI::App& app, const std::vector<std::string>& arguments) {
  const CLI::App* command = &app;
  for (const std::string& argument : arguments) {
    if (argument == "--") break;
    if (!is_long_option(argument)) {
      const CLI::App* sub = command == &app ? subcommand(app, argument) : nullptr;
      if (sub != nullptr) command = sub;
      continue;
    }
    const std::string name = name_part(argument);
    const std::vector<std::string> known = long_names(*command);
    if (std::find(known.begin(), known.end(), name) == known.end()) return name;
  }
  return "";
}

bool is_degree(const std::string& name) {
  return std::find(std::begin(kDegrees), std::end(kDegrees), name) != std::end(kDegrees);
}

std::string word_too_many(const CLI::App& app, const std::vector<std::string>& arguments) {
  if (!unknown_option(app, arguments).empty()) return "";
  const std::vector<std::string> extra = app.remaining(true);
  const bool is_one = extra.size() == 1 && is_word(extra.front());
  return is_one ? extra.front() : "";
}

bool is_option_of_a_path(const std::string& name) {
  return std::find(std::begin(kPaths), std::end(kPaths), name) != std::end(kPaths);
}

std::string did_you_mean(const CLI::App& app, const std::vector<std::string>& arguments) {
  if (!arguments.empty() && arguments.front() == "help") {
    return did_you_mean(app, {arguments.begin() + 1, arguments.end()});
  }
  const CLI::App* command = &app;
  int words = 0;  // positional arguments
  const std::vector<std::string> subcommands = names_of_commands(app);
  const bool wants_command = app.get_require_subcommand_min() > 0;
  const std::string no_command = unknown_command(app, arguments);
  for (const std::string& argument : arguments) {
    if (argument == "--") break;
    if (is_long_option(argument)) {
      const std::string name = name_part(argument);
      const std::vector<std::string> known = long_names(*command);
      if (std::find(known.begin(), known.end(), name) != known.end()) continue;
      return question(meant_by(shown_names(*command), name));
    }
    // In "PATH verfy" the command comes after the path.
    if (subcommands.empty() || command != &app || argument.starts_with("-") || ++words > 2)
      continue;
    std::error_code unreadable;
    if (const CLI::App* sub = subcommand(app, argument)) {
      command = sub;
    } else if (wants_command ? argument == no_command
                             : !std::filesystem::exists(argument, unreadable)) {
      const std::string meant = question(likely(subcommands, argument));
      if (!meant.empty()) return meant;
    }
  }
  return wants_command && command == &app ? commands_of(app) : "";
}

}  // namespace dsckpt::cli
