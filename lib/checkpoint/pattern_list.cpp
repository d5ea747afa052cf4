#include "checkpoint/pattern_list.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "base/patterns.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

// A few bytes with counts in them make long programs.
constexpr int kMaxProgram = 1 << 21;
// Fewer are tried one after the other.
constexpr size_t kFew = 32;
constexpr int64_t kSetMemory = 64 << 20;

// The only text that `pattern` matches as a whole, if it is "^...$" around plain text, as
// re.escape() makes it. AutoTP writes such a pattern for every parameter. A look-up costs nothing;
// trying one after the other costs the square of the parameters.
std::optional<std::string> exact_text(std::string_view pattern) {
  if (pattern.starts_with('^')) pattern.remove_prefix(1);
  if (!pattern.ends_with('$')) return std::nullopt;
  pattern.remove_suffix(1);
  std::string text;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const auto is_plain = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    };
    if (pattern[i] == '\\') {
      if (++i == pattern.size() || is_plain(pattern[i])) return std::nullopt;
    } else if (!is_plain(pattern[i]) && pattern[i] != '-' && pattern[i] != '/') {
      return std::nullopt;
    }
    text += pattern[i];
  }
  return text;
}

}  // namespace

void PatternList::add(std::string pattern) {
  if (auto text = exact_text(pattern)) {
    exact_.emplace(std::move(*text), texts_.size());
  } else {
    const auto [known, is_new] = compiled_of_.try_emplace(pattern, compiled_.size());
    if (is_new) compiled_.push_back({compile(pattern), {}});
    compiled_[known->second].indices.push_back(texts_.size());
  }
  texts_.push_back(std::move(pattern));
}

std::vector<size_t> PatternList::matches(const std::string& name) const {
  std::vector<size_t> found;
  const auto [begin, end] = exact_.equal_range(name);
  for (auto it = begin; it != end; ++it) found.push_back(it->second);
  const auto take = [&](const Compiled& pattern) {
    found.insert(found.end(), pattern.indices.begin(), pattern.indices.end());
  };
  std::vector<int> matching;
  if (match_together(name, matching)) {
    for (const int which : matching) take(compiled_[static_cast<size_t>(which)]);
  } else {
    for (const Compiled& compiled : compiled_) {
      const RE2& pattern = *compiled.pattern;
      if (pattern.Match(name, 0, name.size(), RE2::ANCHOR_START, nullptr, 0)) take(compiled);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::unique_ptr<RE2> PatternList::compile(const std::string& pattern) {
  auto compiled = compile_quietly(pattern);
  if (!compiled->ok()) {
    throw UnsupportedError({}, "the pattern '" + pattern + "': " + compiled->error());
  }
  // Python takes it for {0,n}, RE2 for itself.
  if (pattern.find("{,") != std::string::npos) {
    throw UnsupportedError({}, "the pattern '" + pattern + "': '{,' is not read");
  }
  program_ += compiled->ProgramSize();
  if (program_ > kMaxProgram) {
    throw UnsupportedError(
        {}, "the pattern '" + pattern + "': too large, together with those before it");
  }
  return compiled;
}

// Finds which of `compiled_` match `name`; false if they have to be tried one by one.
bool PatternList::match_together(const std::string& name, std::vector<int>& matching) const {
  if (compiled_.size() <= kFew) return false;
  const RE2::Set* set = all_in_set();
  if (set == nullptr) return false;
  RE2::Set::ErrorInfo error{};
  return set->Match(name, &matching, &error) || error.kind == RE2::Set::kNoError;
}

const RE2::Set* PatternList::all_in_set() const {
  const std::lock_guard lock(mutex_);
  if (compiled_.size() != in_set_) {
    in_set_ = compiled_.size();
    RE2::Options options;
    options.set_log_errors(false);
    options.set_max_mem(kSetMemory);
    set_ = std::make_unique<RE2::Set>(options, RE2::ANCHOR_START);
    for (const Compiled& compiled : compiled_) set_->Add(compiled.pattern->pattern(), nullptr);
    if (!set_->Compile()) set_ = nullptr;
  }
  return set_.get();
}

}  // namespace dsckpt
