// Rules that rename tensors, from a file.
//
// A line is a rule, `REGEX => REPLACEMENT`; empty lines and those that begin with # say nothing.
// The first rule whose RE2 pattern is found in a name replaces what it found, once, as Python's
// re.sub with count=1 does: \1 to \9 are groups, \0 is all that was found. {\1-2} and {\1+2} are
// the number in a group, less or more two. So
//
//   ^(\d+)\.fc => layers.{\1-1}.fc
//
// makes "3.fc1.weight" "layers.2.fc1.weight".
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/keyed_hash.h"

namespace dsckpt {

// One thread, since rules remember that they were used.
class KeyMap {
 public:
  KeyMap();  // without rules: names stay
  // Throws UsageError that names `origin` and the line for what is no rule.
  static KeyMap parse(std::string_view text, const std::string& origin);
  // Reads a file. Throws UsageError, IoError.
  static KeyMap read(const std::filesystem::path& path);
  KeyMap(KeyMap&&) noexcept;
  KeyMap& operator=(KeyMap&&) noexcept;
  ~KeyMap();

  // Throws UsageError for a group that is no number, or less than the number that is taken from it.
  std::string rename(const std::string& name);
  // "FILE:LINE" of rules that have renamed nothing.
  std::vector<std::string> unused() const;

 private:
  struct Rule;
  std::vector<Rule> rules_;
};

// Names that tensors get, each one only once.
class NewNames {
 public:
  // `file` of rules, none if empty. `options`: what an error says has renamed.
  NewNames(const std::filesystem::path& file, std::string options);

  // Of a tensor called `name`; `stripped` is what the rules are given of that. Throws as
  // KeyMap::rename, and UsageError for no name and for that of another tensor.
  std::string add(const std::string& name, const std::string& stripped);
  // Adds a note for each rule that has renamed nothing.
  void note_unused(std::vector<std::string>& notes) const;

 private:
  KeyMap rules_;
  std::string options_;
  KeyedSet<std::string> taken_;
};

}  // namespace dsckpt
