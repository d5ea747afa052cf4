#include "cli/option_facts.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <map>
#include <system_error>
#include <utility>

#include "base/bytes.h"

namespace dsckpt::cli {
namespace {

// CLI11 cannot attach user data. A process has one CLI::App, so entries are never removed.
std::map<const CLI::Option*, std::vector<std::string>>& choices() {
  static std::map<const CLI::Option*, std::vector<std::string>> all;
  return all;
}

std::map<const CLI::App*, Examples>& examples() {
  static std::map<const CLI::App*, Examples> all;
  return all;
}

std::map<const CLI::App*, std::vector<ShortName>>& short_names() {
  static std::map<const CLI::App*, std::vector<ShortName>> all;
  return all;
}

template <typename Key, typename Value>
const Value& find_or_none(const std::map<Key, Value>& all, Key key) {
  static const Value kNone;
  const auto found = all.find(key);
  return found == all.end() ? kNone : found->second;
}

}  // namespace

CLI::Option* one_of(CLI::Option* option, const std::vector<std::string>& words, Case compared) {
  choices()[option] = words;
  if (compared == Case::exact) return quiet_check(option, CLI::IsMember(words));
  return option->transform(CLI::IsMember(words, CLI::ignore_case).description(""));
}

const std::vector<std::string>& choices_of(const CLI::Option& option) {
  return find_or_none(choices(), &option);
}

CLI::Option* quiet_check(CLI::Option* option, CLI::Validator validator) {
  return option->check(validator.description(""));
}

CLI::Option* some_path(CLI::Option* option) {
  const auto check = [](const std::string& text) -> std::string {
    return text.empty() ? "a path cannot be empty" : "";
  };
  return quiet_check(option, CLI::Validator(check, ""));
}

CLI::Option* count_from_one(CLI::Option* option) {
  const auto check = [](std::string& text) -> std::string {
    double number = 0;
    const char* const end = text.data() + text.size();
    const auto [last, failed] = std::from_chars(text.data(), end, number);
    const bool is_count = failed == std::errc() && last == end && number >= 1 &&
                          number <= kMostWhole && std::trunc(number) == number;
    if (!is_count) return "'" + text + "' is not a whole number above 0";
    text = std::to_string(static_cast<int64_t>(number));
    return "";
  };
  return option->transform(CLI::Validator(check, ""));
}

void set_examples(const CLI::App& app, Examples of_app) {
  examples()[&app] = std::move(of_app);
}

const Examples& examples_of(const CLI::App& app) {
  return find_or_none(examples(), &app);
}

void set_short_names(const CLI::App& app, std::vector<ShortName> names) {
  short_names()[&app] = std::move(names);
}

const std::vector<ShortName>& short_names_of(const CLI::App& app) {
  return find_or_none(short_names(), &app);
}

}  // namespace dsckpt::cli
