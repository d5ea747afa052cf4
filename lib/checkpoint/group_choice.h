// Which of the optimizer's groups a parameter goes to that it has not had so far.
#pragma once

#include <array>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "base/keyed_hash.h"
#include "checkpoint/checkpoint.h"

namespace dsckpt {

// Borrows the groups. Any thread.
class GroupChoice {
 public:
  // Learns from the members of `groups`, of the parameters of `base`.
  GroupChoice(const Checkpoint& base, const std::vector<ParamGroup>& groups);

  // The number of the one group that has parameters like this one. They have as many dimensions
  // and the same name but for numbers; else the same last part of the name; else any name. Throws
  // UsageError, which lists the groups, if there are several such groups or none.
  size_t of(const std::string& name, const Shape& shape) const;

  // "group 0 (12 parameters, 'a', 'b' and 10 more; weight_decay 0.1)"
  std::string described(size_t group) const;

 private:
  static constexpr size_t kLevels = 3;
  static std::array<std::string, kLevels> kinds_of(const std::string& name, const Shape& shape);

  const std::vector<ParamGroup>& groups_;
  std::array<KeyedMap<std::string, std::set<size_t>>, kLevels> having_;
};

}  // namespace dsckpt
