// Rules that give tensors other names, and cut and join them, from a file.
//
// A line is a rule, `REGEX => REPLACEMENT`; empty lines and those that begin with # say nothing.
// The first rule whose RE2 pattern is found in a name replaces the match once, as Python's re.sub
// with count=1 does. In REPLACEMENT, \1 to \9 are groups, \0 is the whole match. And {\1-2} and
// {\1+2} are the number in a group, less or more two. So
//
//   ^(\d+)\.fc => layers.{\1-1}.fc
//
// makes "3.fc1.weight" "layers.2.fc1.weight". Behind it may stand operations, each after a `|` with
// blanks around it, and then several patterns and several replacements with ", " between them:
//
//   \.gate_up_proj\. => .gate_proj., .up_proj. | chunk 0
//   \.experts\.\d+\.w1\. => .experts.w1. | stack 0
//
// Tensors that get one name by such a rule are taken together, in the order of the patterns. Those
// of one pattern are ordered by the number in which their names differ, from 0 on without a gap.
// The operations are those of the hub's rules (conversion.h).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/keyed_hash.h"
#include "checkpoint/names/hub_names.h"

namespace dsckpt {

// One thread, since rules remember that they were used. Moving it keeps its changes valid.
class KeyMap {
  struct Rule;

 public:
  // The change of one tensor, or of several together.
  class Change {
   public:
    // Numbers of the tensors, in the order in which the rule takes them; one at least.
    const std::vector<size_t>& inputs() const { return inputs_; }
    // True if it gives a name and no more.
    bool is_renaming() const;
    // "FILE:LINE" of a rule that gives more than a name, else "".
    const std::string& origin() const;

    // The tensors that the inputs become, which `value_of` gives by their numbers. The names are
    // the same for all values. Throws UsageError for values that the operations do not fit.
    using ValueOf = std::function<TensorSource(size_t)>;
    std::vector<ModelTensor> results(const ValueOf& value_of) const;

   private:
    friend class KeyMap;
    const Rule* rule_ = nullptr;  // nullptr if no rule fits
    std::string name_;            // the first that the rule gives
    std::vector<std::string> to_;
    std::vector<std::vector<size_t>> by_pattern_;
    std::vector<size_t> inputs_;
  };

  KeyMap();  // without rules: names stay
  // Throws UsageError that names `origin` and the line that is not a rule.
  static KeyMap parse(std::string_view text, const std::string& origin);
  KeyMap(KeyMap&&) noexcept;
  KeyMap& operator=(KeyMap&&) noexcept;
  ~KeyMap();

  // True if the rule that fits does more than rename.
  bool converts(const std::string& name) const;
  // By the first input of each, in the order of `names`; two may give the same name. Throws
  // UsageError for a group that is not a number, or less than the number that is subtracted. Throws
  // it also for tensors that are taken together, but are not numbered from 0 on. Borrows the rules.
  std::vector<Change> changes(std::span<const std::string> names);
  // "FILE:LINE" of rules that fit no name.
  std::vector<std::string> unused() const;
  bool empty() const { return size() == 0; }
  size_t size() const;

 private:
  const Rule* rule_for(const std::string& name, size_t& pattern,
                       std::vector<std::string>& to) const;

  std::vector<Rule> rules_;
};

// Names that tensors get, each one only once.
class NewNames {
 public:
  // `options`: the cause of the renaming, for errors.
  explicit NewNames(std::string options) : options_(std::move(options)) {}
  // `given` for a tensor called `name`. Throws UsageError for no name and for that of another.
  void add(const std::string& name, const std::string& given);

 private:
  std::string options_;
  KeyedSet<std::string> taken_;
};

}  // namespace dsckpt
