// Regular expressions and prefixes for names of tensors.
#pragma once

#include <re2/re2.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dsckpt {

// An RE2 that prints no errors; the caller checks ok().
std::unique_ptr<RE2> compile_quietly(const std::string& pattern);

// Several patterns, any of which may match a name. Any thread.
class Patterns {
 public:
  // Throws UsageError "OPTION 'PATTERN': why".
  Patterns(const std::vector<std::string>& patterns, std::string_view option);
  bool empty() const { return patterns_.empty(); }
  bool find_in(const std::string& name) const;
  // True if a pattern matches the whole of `name`.
  bool match_all(const std::string& name) const;

 private:
  std::vector<std::unique_ptr<RE2>> patterns_;
};

// `name` without the first of `prefixes` that it begins with, if anything is left then.
std::string without_prefix(const std::string& name, const std::vector<std::string>& prefixes);

}  // namespace dsckpt
