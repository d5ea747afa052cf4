#include "checkpoint/names/key_map.h"

#include <re2/re2.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "base/patterns.h"
#include "base/text.h"
#include "checkpoint/names/conversion.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kArrow = "=>";
constexpr std::string_view kBar = " | ";
constexpr std::string_view kComma = ", ";
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

std::vector<Part> replacement_parts(std::string_view text) {
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

std::vector<std::string> cut_at(std::string_view text, std::string_view mark) {
  std::vector<std::string> parts;
  while (true) {
    const size_t end = std::min(text.find(mark), text.size());
    parts.emplace_back(without_blanks(text.substr(0, end)));
    if (end == text.size()) return parts;
    text.remove_prefix(end + mark.size());
  }
}

// An operation in the form of the hub's rules; nullopt if the text is not one.
std::optional<Json> operation_of(const std::string& text) {
  const std::vector<std::string> words = cut_at(text, " ");
  std::vector<int64_t> numbers;
  for (size_t i = 1; i < words.size(); ++i) {
    if (words[i].empty()) continue;
    int64_t number = 0;
    const char* const end = words[i].data() + words[i].size();
    const auto [stop, failed] = std::from_chars(words[i].data(), end, number);
    if (failed != std::errc() || stop != end || number < 0) return std::nullopt;
    numbers.push_back(number);
  }
  const std::string& name = words.front();
  if (name == "split" && numbers.size() > 1) {
    return Json::array({name, numbers.front(), std::vector(numbers.begin() + 1, numbers.end())});
  }
  if (name == "transpose" && numbers.size() == 2) {
    return Json::array({name, numbers[0], numbers[1]});
  }
  const bool takes_one = name == "chunk" || name == "cat" || name == "stack" || name == "unstack";
  if (!takes_one || numbers.size() != 1) return std::nullopt;
  return Json::array({name, numbers.front()});
}

// The texts between numbers, and these.
struct NumberedText {
  std::vector<std::string> texts = std::vector<std::string>(1);
  std::vector<std::string> numbers;
};

NumberedText numbers_in(const std::string& name) {
  NumberedText found;
  bool in_number = false;
  for (const char c : name) {
    const bool is_digit = c >= '0' && c <= '9';
    if (is_digit && !in_number) {
      found.numbers.emplace_back();
      found.texts.emplace_back();
    }
    (is_digit ? found.numbers : found.texts).back() += c;
    in_number = is_digit;
  }
  return found;
}

// Numbers of `names` by the one number in which they differ, if that goes from 0 on without a gap.
std::optional<std::vector<size_t>> numbered_order(std::span<const std::string> names) {
  const NumberedText first = numbers_in(names[0]);
  std::vector<NumberedText> all;
  std::optional<size_t> differing;
  for (const std::string& name : names) {
    all.push_back(numbers_in(name));
    if (all.back().texts != first.texts) return std::nullopt;
    for (size_t i = 0; i < first.numbers.size(); ++i) {
      if (all.back().numbers[i] == first.numbers[i]) continue;
      if (differing.value_or(i) != i) return std::nullopt;
      differing = i;
    }
  }
  std::vector<size_t> order(names.size(), names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    size_t number = 0;
    if (differing) {
      const std::string& digits = all[i].numbers[*differing];
      const auto [end, failed] =
          std::from_chars(digits.data(), digits.data() + digits.size(), number);
      if (failed != std::errc()) return std::nullopt;
    }
    if (number >= order.size() || order[number] != names.size()) return std::nullopt;
    order[number] = i;
  }
  return order;
}

}  // namespace

struct KeyMap::Rule {
  std::string origin;  // "FILE:LINE"
  std::vector<std::string> from;
  std::vector<std::unique_ptr<RE2>> patterns;
  std::vector<std::vector<Part>> to;
  Json operations = Json::array();
  mutable bool used = false;

  bool is_renaming() const { return operations.empty(); }

  std::string filled(const std::vector<Part>& parts,
                     const std::array<re2::StringPiece, kGroups>& groups) const {
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

  void read(std::string_view left, std::string_view right);
  void read_operations(const std::vector<std::string>& texts);
};

void KeyMap::Rule::read(std::string_view left, std::string_view right) {
  std::vector<std::string> behind = cut_at(right, kBar);
  const bool has_operations = behind.size() > 1;
  from = has_operations ? cut_at(left, kComma) : std::vector{std::string(without_blanks(left))};
  const std::vector<std::string> replacements =
      has_operations ? cut_at(behind.front(), kComma) : std::vector{behind.front()};
  size_t fewest_groups = kGroups;
  for (const std::string& pattern : from) {
    patterns.push_back(compile_quietly(pattern));
    const RE2& compiled = *patterns.back();
    if (!compiled.ok()) throw UsageError(origin + ": '" + pattern + "': " + compiled.error());
    fewest_groups =
        std::min(fewest_groups, static_cast<size_t>(compiled.NumberOfCapturingGroups()));
  }
  for (const std::string& replacement : replacements) {
    to.push_back(replacement_parts(replacement));
    for (const Part& part : to.back()) {
      if (part.group.value_or(0) <= fewest_groups) continue;
      throw UsageError(origin + ": there is no group \\" + std::to_string(*part.group));
    }
  }
  behind.erase(behind.begin());
  read_operations(behind);
}

void KeyMap::Rule::read_operations(const std::vector<std::string>& texts) {
  bool makes_list = false;
  for (const std::string& text : texts) {
    const std::optional<Json> operation = operation_of(text);
    if (!operation) {
      throw UsageError(origin + ": '" + text + "' is not an operation")
          .with_hint(
              "chunk DIM, split DIM PART PART ..., cat DIM, stack DIM, unstack DIM, "
              "transpose DIM DIM");
    }
    const std::string name = (*operation)[0].get<std::string>();
    makes_list = makes_list || name == "unstack";
    if (name == "split" && (*operation)[2].size() != to.size()) {
      throw UsageError(origin + ": split into " + counted((*operation)[2].size(), "part") +
                       ", and there " + (to.size() == 1 ? "is " : "are ") +
                       counted(to.size(), "name"));
    }
    operations.push_back(*operation);
  }
  for (const std::vector<Part>& parts : to) {
    const bool has_star = std::any_of(parts.begin(), parts.end(), [](const Part& part) {
      return part.text.find('*') != part.text.npos;
    });
    if (!is_renaming() && has_star != makes_list) {
      throw UsageError(origin + (makes_list ? ": unstack wants a * in each name, for the number"
                                            : ": a * is for the numbers of unstack"));
    }
  }
}

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
    Rule rule{
        .origin = origin + ":" + std::to_string(number), .from = {}, .patterns = {}, .to = {}};
    const size_t arrow = line.find(kArrow);
    if (arrow == line.npos) throw UsageError(rule.origin + ": is not 'REGEX => REPLACEMENT'");
    rule.read(line.substr(0, arrow), line.substr(arrow + kArrow.size()));
    map.rules_.push_back(std::move(rule));
  }
  return map;
}

size_t KeyMap::size() const {
  return rules_.size();
}

const KeyMap::Rule* KeyMap::rule_for(const std::string& name, size_t& pattern,
                                     std::vector<std::string>& to) const {
  std::array<re2::StringPiece, kGroups> groups;
  for (const Rule& rule : rules_) {
    for (size_t i = 0; i < rule.patterns.size(); ++i) {
      const RE2& find = *rule.patterns[i];
      const auto count = std::min<int>(kGroups, find.NumberOfCapturingGroups() + 1);
      if (!find.Match(name, 0, name.size(), RE2::UNANCHORED, groups.data(), count)) continue;
      const auto begin = static_cast<size_t>(groups[0].data() - name.data());
      for (const std::vector<Part>& parts : rule.to) {
        to.push_back(name.substr(0, begin) + rule.filled(parts, groups) +
                     name.substr(begin + groups[0].size()));
      }
      pattern = i;
      return &rule;
    }
  }
  to.push_back(name);
  return nullptr;
}

bool KeyMap::converts(const std::string& name) const {
  size_t pattern = 0;
  std::vector<std::string> to;
  const Rule* rule = rule_for(name, pattern, to);
  return rule != nullptr && !rule->is_renaming();
}

std::vector<KeyMap::Change> KeyMap::changes(std::span<const std::string> names) {
  std::vector<Change> changes;
  KeyedMap<std::string, size_t> by_name;
  for (size_t i = 0; i < names.size(); ++i) {
    Change change;
    size_t pattern = 0;
    change.rule_ = rule_for(names[i], pattern, change.to_);
    if (change.rule_ != nullptr) change.rule_->used = true;
    change.name_ = change.to_.front();
    const auto [found, is_new] = by_name.emplace(change.name_, changes.size());
    const bool joins = !is_new && !change.is_renaming() &&
                       changes[found->second].rule_ == change.rule_ &&
                       changes[found->second].to_ == change.to_;
    const size_t at = joins ? found->second : changes.size();
    if (!joins) {
      change.by_pattern_.resize(change.rule_ == nullptr ? 1 : change.rule_->patterns.size());
      changes.push_back(std::move(change));
    }
    changes[at].by_pattern_[pattern].push_back(i);
  }
  for (Change& change : changes) {
    for (size_t p = 0; p < change.by_pattern_.size(); ++p) {
      std::vector<size_t>& inputs = change.by_pattern_[p];
      std::vector<std::string> each;
      for (const size_t i : inputs) each.push_back(names[i]);
      if (inputs.empty()) {
        throw UsageError(change.origin() + ": there is no '" + change.rule_->from[p] + "' for '" +
                         change.name_ + "'");
      }
      const auto order = numbered_order(each);
      if (!order) {
        throw UsageError(change.origin() + ": '" + change.name_ + "' would be made of " +
                         some_of(each) + ", which are not numbered from 0 on");
      }
      std::vector<size_t> sorted;
      for (const size_t i : *order) sorted.push_back(inputs[i]);
      inputs = std::move(sorted);
      change.inputs_.insert(change.inputs_.end(), inputs.begin(), inputs.end());
    }
  }
  return changes;
}

std::vector<std::string> KeyMap::unused() const {
  std::vector<std::string> origins;
  for (const Rule& rule : rules_) {
    if (!rule.used) origins.push_back(rule.origin);
  }
  return origins;
}

bool KeyMap::Change::is_renaming() const {
  return rule_ == nullptr || rule_->is_renaming();
}

const std::string& KeyMap::Change::origin() const {
  static const std::string kNone;
  return is_renaming() ? kNone : rule_->origin;
}

std::vector<ModelTensor> KeyMap::Change::results(const ValueOf& value_of) const {
  if (is_renaming()) return {{name_, value_of(inputs_.front())}};
  Collected collected;
  for (size_t p = 0; p < by_pattern_.size(); ++p) {
    std::vector<TensorSource> values;
    for (const size_t i : by_pattern_[p]) values.push_back(value_of(i));
    // A pattern may be there twice.
    collected.emplace_back(std::to_string(p), std::move(values));
  }
  std::vector<std::string> patterns;
  for (const auto& each : collected) patterns.push_back(each.first);
  const Json config = Json::object();
  const ConversionContext context{.from = patterns, .to = to_, .config = config};
  try {
    for (const Json& operation : rule_->operations) {
      collected = convert(operation, std::move(collected), context);
    }
    std::vector<ModelTensor> made;
    for (auto& [name, values] : collected) {
      if (values.size() != 1) {
        throw UnsupportedError({}, counted(values.size(), "tensor") + " would be called '" +
                                       (name == patterns.front() ? name_ : name) + "'");
      }
      made.push_back({name, std::move(values.front())});
    }
    // Operations that leave several patterns apart have given no names.
    const bool has_names = std::none_of(made.begin(), made.end(), [&](const ModelTensor& each) {
      return std::find(patterns.begin(), patterns.end(), each.name) != patterns.end();
    });
    if (!has_names) throw UnsupportedError({}, "its operations leave several tensors for one name");
    return made;
  } catch (const UnsupportedError& error) {
    throw UsageError(rule_->origin + ": of '" + name_ + "': " + error.message());
  }
}

void NewNames::add(const std::string& name, const std::string& given) {
  if (given.empty() && !name.empty()) throw UsageError("'" + name + "' is left without a name");
  if (!taken_.insert(given).second) {
    throw UsageError("'" + name + "' gets the name '" + given + "' of another tensor by " +
                     options_);
  }
}

}  // namespace dsckpt
