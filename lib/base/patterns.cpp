#include "base/patterns.h"

#include <algorithm>

#include "dsckpt/error.h"

namespace dsckpt {

std::unique_ptr<RE2> compile_quietly(const std::string& pattern) {
  RE2::Options quiet;
  quiet.set_log_errors(false);
  return std::make_unique<RE2>(pattern, quiet);
}

Patterns::Patterns(const std::vector<std::string>& patterns, std::string_view option) {
  for (const std::string& pattern : patterns) {
    patterns_.push_back(compile_quietly(pattern));
    if (patterns_.back()->ok()) continue;
    throw UsageError(std::string(option) + " '" + pattern + "': " + patterns_.back()->error());
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
