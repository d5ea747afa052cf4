// The rules by which the slices of tensor-parallel ranks make one parameter: what a checkpoint's
// `universal_checkpoint_info` says. deepspeed/checkpoint/ds_to_universal.py merge_tp_slices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "checkpoint/affine_map.h"
#include "checkpoint/shard.h"
#include "checkpoint/tp_rule.h"
#include "deepspeed/universal_form.h"
#include "dsckpt/dtype.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// One thread, since rules remember that they were used. Owns all it needs.
class UniversalInfo {
 public:
  class Rule;

  // Only the user's rules; what has none is cut along dimension 0. Throws UsageError for patterns
  // that RE2 cannot compile.
  explicit UniversalInfo(const std::vector<TpRule>& user_rules = {});
  // Reads the `universal_checkpoint_info` of a model-states file. Throws CorruptError, which names
  // the field, for what has the wrong kind or is negative; UnsupportedError for an affine map of a
  // version above 1, for parameters that autotp_unsupported_parameter_patterns names, with its
  // reasons, and for patterns that RE2 cannot compile, such as look-around. Where one of
  // `user_rules` fits it decides, but for parameters that have an affine map.
  static UniversalInfo read(const Fields& info, const std::vector<TpRule>& user_rules = {});
  UniversalInfo(UniversalInfo&&) noexcept;
  UniversalInfo& operator=(UniversalInfo&&) noexcept;
  ~UniversalInfo();

  // universal_checkpoint_version; 0 if there is none.
  double version() const;

  // How the slices of parameter `name` go together. `slice_shapes` are the shapes that the
  // tensor-parallel ranks have of it, in rank order; a slice can be empty. The first of these that
  // is for the name decides: affine map, replicated, averaged, two sub-parameters, sub-parameters,
  // and else a concatenation, along dimension 1 if it is row parallel and 0 if not. Throws, with
  // file and parameter, InconsistentError for slices that do not fit the rule or one another and
  // for two patterns of one list that match; CorruptError for a rule that contradicts itself;
  // UnsupportedError as AffineAssembly does.
  Rule rule_for(const std::string& name, const std::vector<Shape>& slice_shapes);

  // Whether anything says how the slices of `name` go together; if not, rule_for() takes it to be
  // cut along dimension 0, as DeepSpeed does.
  bool has_rule(const std::string& name) const;
  // The rule of a parameter that is the same on all ranks, whatever else is said of it.
  static Rule replicated(const std::string& name, const std::vector<Shape>& slice_shapes);

  // Counts what the file says of `name` as used: it goes together otherwise.
  void pass_over(const std::string& name);
  // The user's patterns that no rule_for() call so far has used.
  std::vector<std::string> unused_user_rules() const;
  // The file's patterns that no rule_for() call so far has used, in the order in which they were
  // read. DeepSpeed's strict check wants none, if there was any parameter. Patterns of
  // pipeline_replicated_parameter_patterns and of the affine map are not among them; those that an
  // affine map takes the place of count as used.
  std::vector<std::string> unused_patterns() const;

  // Whether pipeline stages after the first have mere copies of the parameter, to be left out.
  bool is_pipeline_replicated(const std::string& name) const;

 private:
  struct Impl;
  explicit UniversalInfo(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Immutable, any thread; outlives the UniversalInfo.
class UniversalInfo::Rule {
 public:
  // The keys beside `param`. vocab_rows is set if a vocabulary pattern matches: merge() keeps the
  // padding, the caller cuts it off with narrow(0, 0, vocab_rows).
  const UniversalForm& form() const { return form_; }
  // Of what merge() returns.
  const Shape& shape() const { return shape_; }
  // `slices` in rank order, shaped as rule_for() was told, else InconsistentError. `state` is
  // "fp32", "exp_avg" ...: it is named in the error of copies that turn out to differ. States of
  // what is summed are copies: each rank's part has the gradient of the sum.
  TensorSource merge(std::vector<TensorSource> slices, std::string_view state) const;

 private:
  friend class UniversalInfo;
  struct Replicated {};
  struct Averaged {};
  struct Summed {};
  // Each slice viewed as its entry of `views`; `parts` of them, in the order of the result.
  struct Concatenated {
    struct Part {
      size_t rank;
      int64_t start, length;  // along `dim`
    };
    size_t dim = 0;
    std::vector<Shape> views;
    std::vector<Part> parts;
  };
  using Assembled = std::shared_ptr<const AffineAssembly>;

  Rule() = default;

  std::string name_;
  std::vector<Shape> slice_shapes_;
  UniversalForm form_;
  Shape shape_;
  std::variant<Replicated, Averaged, Summed, Concatenated, Assembled> how_;
};

}  // namespace dsckpt
