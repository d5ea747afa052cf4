#include "cli/command_facts.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/help.h"
#include "cli/messages.h"
#include "cli/option_facts.h"

namespace dsckpt::cli {
namespace {

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

ValueKind kind_of(const CLI::Option& option, const OptionFacts& facts) {
  if (facts.value.empty()) return ValueKind::none;
  if (!facts.choices.empty()) return ValueKind::choice;
  if (facts.value == "DIR" || facts.value == "CHECKPOINT") return ValueKind::folder;
  if (facts.value == "TAG") return ValueKind::tag;
  if (facts.value == "NAME") return ValueKind::tensor;
  // A positional argument is a path unless another type was set.
  const bool is_path = option.get_positional() && facts.value == "TEXT";
  return is_path || facts.value == "FILE" ? ValueKind::file : ValueKind::text;
}

OptionFacts option_facts(const CLI::Option& option) {
  OptionFacts facts;
  facts.names = option_names(option);
  if (option.get_positional()) facts.names = {option.get_name(true)};
  facts.value = value_name(option);
  facts.choices = choices_of(option);
  facts.kind = kind_of(option, facts);
  facts.unless_given = option.get_default_str();
  facts.description = one_line(option.get_description());
  facts.required = option.get_required();
  facts.repeated = option.get_expected_max() > 1;
  return facts;
}

}  // namespace

CommandFacts facts_of(const CLI::App& app) {
  CommandFacts facts;
  facts.name = app.get_name();
  facts.description = one_line(app.get_description());
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    (option->get_positional() ? facts.positionals : facts.options).push_back(option_facts(*option));
  }
  for (const CLI::App* sub : app.get_subcommands({})) {
    if (!sub->get_group().empty()) facts.subcommands.push_back(facts_of(*sub));
  }
  facts.needs_subcommand = app.get_require_subcommand_min() > 0;
  facts.is_program = app.get_prefix_command();
  facts.examples = examples_of(app);
  facts.short_names = short_names_of(app);
  return facts;
}

namespace {

const char* name_of(ValueKind kind) {
  switch (kind) {
    case ValueKind::none:
      return "flag";
    case ValueKind::choice:
      return "choice";
    case ValueKind::folder:
      return "folder";
    case ValueKind::file:
      return "file";
    case ValueKind::tag:
      return "tag";
    case ValueKind::tensor:
      return "tensor";
    case ValueKind::text:
      return "text";
  }
  return "";
}

nlohmann::json option_json(const OptionFacts& option) {
  return {{"names", option.names},
          {"value", option.value},
          {"kind", name_of(option.kind)},
          {"choices", option.choices},
          {"unless_given", option.unless_given},
          {"description", option.description},
          {"required", option.required},
          {"repeated", option.repeated}};
}

nlohmann::json command_json(const CommandFacts& facts) {
  nlohmann::json json = {{"name", facts.name},
                         {"description", facts.description},
                         {"positionals", nlohmann::json::array()},
                         {"options", nlohmann::json::array()},
                         {"commands", nlohmann::json::array()}};
  for (const OptionFacts& option : facts.positionals) {
    json["positionals"].push_back(option_json(option));
  }
  for (const OptionFacts& option : facts.options) json["options"].push_back(option_json(option));
  for (const CommandFacts& sub : facts.subcommands) json["commands"].push_back(command_json(sub));
  return json;
}

}  // namespace

std::string facts_json(const CommandFacts& facts) {
  return json_line("options", command_json(facts));
}

}  // namespace dsckpt::cli
