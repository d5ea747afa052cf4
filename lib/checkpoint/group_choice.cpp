#include "checkpoint/group_choice.h"

#include <sstream>

#include "base/text.h"
#include "dsckpt/error.h"

namespace dsckpt {

using pickle::Kind;
using pickle::Value;

std::array<std::string, GroupChoice::kLevels> GroupChoice::kinds_of(const std::string& name,
                                                                    const Shape& shape) {
  const std::string dims = std::to_string(shape.size()) + ' ';
  std::string without_numbers = dims;
  for (size_t at = 0; at < name.size();) {
    const size_t end = std::min(name.find('.', at), name.size());
    const std::string part = name.substr(at, end - at);
    without_numbers += (is_digits(part) ? "#" : part) + '.';
    at = end + 1;
  }
  const size_t dot = name.rfind('.');
  const std::string last = dot == std::string::npos ? name : name.substr(dot + 1);
  return {std::move(without_numbers), dims + last, dims};
}

GroupChoice::GroupChoice(const Checkpoint& base, const std::vector<ParamGroup>& groups)
    : groups_(groups) {
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const std::string& name : groups[g].params) {
      const Param* param = base.find(name);
      if (param == nullptr) continue;
      const auto kinds = kinds_of(name, param->weight.shape());
      for (size_t level = 0; level < kLevels; ++level) having_[level][kinds[level]].insert(g);
    }
  }
}

size_t GroupChoice::of(const std::string& name, const Shape& shape) const {
  if (groups_.size() == 1) return 0;
  const auto kinds = kinds_of(name, shape);
  const std::set<size_t>* having = nullptr;
  for (size_t level = 0; level < kLevels && having == nullptr; ++level) {
    const auto found = having_[level].find(kinds[level]);
    if (found != having_[level].end()) having = &found->second;
  }
  if (having != nullptr && having->size() == 1) return *having->begin();
  std::vector<std::string> lines;
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (having == nullptr || having->contains(g)) lines.push_back(described(g));
  }
  throw UsageError("'" + name + "' becomes trained, and " +
                   (having == nullptr
                        ? "no group of the optimizer has parameters like it:"
                        : "several groups of the optimizer have parameters like it:") +
                   listed(lines))
      .with_hint("--like CHECKPOINT takes the groups from a checkpoint of the new run");
}

std::string GroupChoice::described(size_t group) const {
  const ParamGroup& which = groups_[group];
  std::string text =
      "group " + std::to_string(group) + " (" + counted(which.params.size(), "parameter");
  if (!which.params.empty()) text += ", " + some_of(which.params);
  std::string settings;
  for (const char* key : {"lr", "weight_decay"}) {
    const Value value = which.settings.value.find_or_none(key);
    if (!value.is(Kind::real) && !value.is(Kind::integer)) continue;
    std::ostringstream number;
    number << value.as_real();
    settings += (settings.empty() ? "; " : ", ") + std::string(key) + " " + number.str();
  }
  return text + settings + ")";
}

}  // namespace dsckpt
