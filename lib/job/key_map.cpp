#include "job/key_map.h"

#include <re2/re2.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "base/patterns.h"
#include "base/text.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

constexpr std::string_view kArrow = "=>";
constexpr uintmax_t kMaxBytes = 16 << 20;
constexpr size_t kGroups = 10;

// Text of a replacement, and then perhaps a group.
struct Part {
  std::string text;
  std::optional<size_t> group;
  bool is_number = false;
  int64_t plus = 0;  // if it is one
};

// "{\1-2}" at `at`, which is moved behind it; nullopt if that is something else.
std::optional<Part> number_at(std::string_view text, size_t& at) {
  if (text.size() < at + 6 || text[at + 1] != '\\' || text[at + 2] < '0' || text[at + 2] > '9') {
    return std::nullopt;
  }
  const char sign = text[at + 3];
  int64_t number = 0;
  const auto [end, failed] =
      std::from_chars(text.data() + at + 4, text.data() + text.size(), number);
  const auto behind = static_cast<size_t>(end - text.data());
  if ((sign != '+' && sign != '-') || failed != std::errc() || number < 0 ||
      behind == text.size() || text[behind] != '}') {
    return std::nullopt;
  }
  Part part{.text = {}, .group = static_cast<size_t>(text[at + 2] - '0'), .is_number = true};
  part.plus = sign == '-' ? -number : number;
  at = behind + 1;
  return part;
}

std::vector<Part> parts_of(std::string_view text) {
  std::vector<Part> parts(1);
  for (size_t at = 0; at < text.size();) {
    std::optional<Part> found;
    if (text[at] == '{') found = number_at(text, at);
    if (!found && text[at] == '\\' && at + 1 < text.size()) {
      const char next = text[at + 1];
      at += 2;
      if (next >= '0' && next <= '9') {
        found = Part{.text = {}, .group = static_cast<size_t>(next - '0')};
      } else {
        parts.back().text += next;
        continue;
      }
    }
    if (!found) {
      parts.back().text += text[at++];
      continue;
    }
    found->text = std::move(parts.back().text);
    parts.back() = std::move(*found);
    parts.emplace_back();
  }
  return parts;
}

}  // namespace

struct KeyMap::Rule {
  std::string origin;  // "FILE:LINE"
  std::unique_ptr<RE2> pattern;
  std::vector<Part> parts;
  bool used = false;

  std::string filled(const std::array<re2::StringPiece, kGroups>& groups) const {
    std::string text;
    for (const Part& part : parts) {
      text += part.text;
      if (!part.group) continue;
      const re2::StringPiece& group = groups[*part.group];
      const std::string found(group.data() == nullptr ? "" : group.data(), group.size());
      text += part.is_number ? moved(found, part.plus) : found;
    }
    return text;
  }

  std::string moved(const std::string& digits, int64_t plus) const {
    int64_t number = 0;
    const char* const end = digits.data() + digits.size();
    const auto [stop, failed] = std::from_chars(digits.data(), end, number);
    if (failed != std::errc() || stop != end || digits.empty() ||
        __builtin_add_overflow(number, plus, &number) || number < 0) {
      throw UsageError(origin + ": cannot count " + (plus < 0 ? "down" : "up") + " from '" +
                       digits + "'");
    }
    return std::to_string(number);
  }
};

KeyMap::KeyMap() = default;
KeyMap::KeyMap(KeyMap&&) noexcept = default;
KeyMap& KeyMap::operator=(KeyMap&&) noexcept = default;
KeyMap::~KeyMap() = default;

KeyMap KeyMap::parse(std::string_view text, const std::string& origin) {
  KeyMap map;
  size_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = without_blanks(text.substr(at, end - at));
    at = end + 1;
    ++number;
    if (line.empty() || line.front() == '#') continue;
    Rule rule{.origin = origin + ":" + std::to_string(number), .pattern = {}, .parts = {}};
    const size_t arrow = line.find(kArrow);
    if (arrow == line.npos) throw UsageError(rule.origin + ": is not 'REGEX => REPLACEMENT'");
    const std::string pattern(without_blanks(line.substr(0, arrow)));
    rule.pattern = compile_quietly(pattern);
    if (!rule.pattern->ok()) {
      throw UsageError(rule.origin + ": '" + pattern + "': " + rule.pattern->error());
    }
    rule.parts = parts_of(without_blanks(line.substr(arrow + kArrow.size())));
    for (const Part& part : rule.parts) {
      const auto groups = static_cast<size_t>(rule.pattern->NumberOfCapturingGroups());
      if (part.group.value_or(0) <= groups) continue;
      throw UsageError(rule.origin + ": there is no group \\" + std::to_string(*part.group));
    }
    map.rules_.push_back(std::move(rule));
  }
  return map;
}

KeyMap KeyMap::read(const std::filesystem::path& path) {
  std::error_code failed;
  const uintmax_t size = std::filesystem::file_size(path, failed);
  if (failed) {
    throw IoError({.file = path.string()}, "cannot open", failed.value())
        .with_hint("--key-map takes a file with lines of REGEX => REPLACEMENT");
  }
  if (size > kMaxBytes) throw UsageError(path.string() + ": is too large for rules of names");
  std::ifstream file(path, std::ios::binary);
  std::string text(size, '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(size))) {
    throw IoError({.file = path.string()}, "cannot read", errno);
  }
  return parse(text, path.string());
}

std::string KeyMap::rename(const std::string& name) {
  std::array<re2::StringPiece, kGroups> groups;
  for (Rule& rule : rules_) {
    const auto count = std::min<int>(kGroups, rule.pattern->NumberOfCapturingGroups() + 1);
    if (!rule.pattern->Match(name, 0, name.size(), RE2::UNANCHORED, groups.data(), count)) continue;
    rule.used = true;
    const auto begin = static_cast<size_t>(groups[0].data() - name.data());
    return name.substr(0, begin) + rule.filled(groups) + name.substr(begin + groups[0].size());
  }
  return name;
}

std::vector<std::string> KeyMap::unused() const {
  std::vector<std::string> origins;
  for (const Rule& rule : rules_) {
    if (!rule.used) origins.push_back(rule.origin);
  }
  return origins;
}

NewNames::NewNames(const std::filesystem::path& file, std::string options)
    : rules_(file.empty() ? KeyMap() : KeyMap::read(file)), options_(std::move(options)) {}

std::string NewNames::add(const std::string& name, const std::string& stripped) {
  std::string given = rules_.rename(stripped);
  if (given.empty() && !name.empty()) throw UsageError("'" + name + "' is left without a name");
  if (!taken_.insert(given).second) {
    throw UsageError("'" + name + "' gets the name '" + given + "' of another tensor by " +
                     options_);
  }
  return given;
}

void NewNames::note_unused(std::vector<std::string>& notes) const {
  for (const std::string& rule : rules_.unused()) notes.push_back(rule + ": renames nothing");
}

}  // namespace dsckpt
