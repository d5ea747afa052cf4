#include "base/patterns.h"

#include <algorithm>
#include <utility>

#include "dsckpt/error.h"

namespace dsckpt {

std::unique_ptr<RE2> compile_quietly(const std::string& pattern) {
  RE2::Options quiet;
  quiet.set_log_errors(false);
  return std::make_unique<RE2>(pattern, quiet);
}

namespace {

// Returns the regular expression to search for in place of a glob: "'norm'" for "*norm*".
std::string regex_of_glob(std::string_view glob) {
  bool from_begin = true;
  bool to_end = true;
  for (; glob.starts_with('*'); glob.remove_prefix(1)) from_begin = false;
  for (; glob.ends_with('*'); glob.remove_suffix(1)) to_end = false;
  std::string regex = from_begin ? "^" : "";
  for (const char c : glob) {
    if (c == '*') {
      regex += ".*";
    } else if (c == '?') {
      regex += '.';
    } else {
      regex += RE2::QuoteMeta(std::string_view(&c, 1));
    }
  }
  return "'" + regex + (to_end ? "$" : "") + "'";
}

}  // namespace

Patterns::Patterns(const std::vector<std::string>& patterns, std::string_view option) {
  for (const std::string& pattern : patterns) {
    patterns_.push_back(compile_quietly(pattern));
    if (patterns_.back()->ok()) continue;
    UsageError error(std::string(option) + " '" + pattern + "': " + patterns_.back()->error());
    if (pattern.find('*') == std::string::npos) throw error;
    throw std::move(error).with_hint("it takes a regular expression, not a glob: " +
                                     regex_of_glob(pattern));
  }
}

bool Patterns::find_in(const std::string& name) const {
  return std::any_of(patterns_.begin(), patterns_.end(),
                     [&](const auto& pattern) { return RE2::PartialMatch(name, *pattern); });
}

bool Patterns::match_all(const std::string& name) const {
  return std::any_of(patterns_.begin(), patterns_.end(),
                     [&](const auto& pattern) { return RE2::FullMatch(name, *pattern); });
}

std::string without_prefix(const std::string& name, const std::vector<std::string>& prefixes) {
  for (const std::string& prefix : prefixes) {
    if (!prefix.empty() && name.starts_with(prefix) && name.size() > prefix.size()) {
      return name.substr(prefix.size());
    }
  }
  return name;
}

}  // namespace dsckpt
