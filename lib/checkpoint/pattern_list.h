// The patterns of parameters' names that a checkpoint says something of.
#pragma once

#include <re2/re2.h>
#include <re2/set.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/keyed_hash.h"

namespace dsckpt {

// A list of patterns, each tried as Python's re.match does: from the start, not to the end. Any
// number of threads may ask while nobody adds.
class PatternList {
 public:
  // Throws UnsupportedError for patterns that RE2 does not read, or reads differently from Python,
  // and if all of them together make too large programs.
  void add(std::string pattern);

  // Which of them match, rising.
  std::vector<size_t> matches(const std::string& name) const;

  const std::vector<std::string>& texts() const { return texts_; }

 private:
  struct Compiled {
    std::unique_ptr<RE2> pattern;
    std::vector<size_t> indices;  // of all that have this text
  };

  std::unique_ptr<RE2> compile(const std::string& pattern);
  bool match_together(const std::string& name, std::vector<int>& matching) const;
  const RE2::Set* all_in_set() const;

  std::vector<std::string> texts_;
  KeyedMultimap<std::string, size_t> exact_;
  std::vector<Compiled> compiled_;
  KeyedMap<std::string, size_t> compiled_of_;  // by text
  int program_ = 0;                            // instructions of all
  // All of `compiled_`, made when they are first tried; nullptr if together they are too large.
  mutable std::mutex mutex_;
  mutable std::unique_ptr<RE2::Set> set_;
  mutable size_t in_set_ = 0;
};

}  // namespace dsckpt
