// The rules that join the slices of tensor-parallel ranks into one parameter, from a checkpoint's
// `universal_checkpoint_info`. Source: deepspeed/checkpoint/ds_to_universal.py merge_tp_slices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "checkpoint/affine_map.h"
#include "checkpoint/shard.h"
#include "checkpoint/tp_cut.h"
#include "checkpoint/tp_rule.h"
#include "deepspeed/universal_form.h"
#include "dsckpt/dtype.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// One thread, since rules remember that they were used. Owns all it needs.
class UniversalInfo {
 public:
  class Rule;

  // Only the user's rules; a parameter without one is cut along dimension 0. Throws UsageError for
  // patterns that RE2 cannot compile.
  explicit UniversalInfo(const std::vector<TpRule>& user_rules = {});
  // Reads the `universal_checkpoint_info` of a model-states file. Throws CorruptError, which names
  // the field, for values that are of the wrong kind or negative. Throws UnsupportedError for an
  // affine map of a version above 1. Throws it, with the reasons there, for parameters that
  // autotp_unsupported_parameter_patterns names. Throws it as well for patterns that RE2 cannot
  // compile, such as look-around. If one of `user_rules` fits it decides, except for parameters
  // that have an affine map.
  static UniversalInfo read(const Fields& info, const std::vector<TpRule>& user_rules = {});
  UniversalInfo(UniversalInfo&&) noexcept;
  UniversalInfo& operator=(UniversalInfo&&) noexcept;
  ~UniversalInfo();

  // universal_checkpoint_version; 0 if there is none.
  double version() const;

  // The rule that joins the slices of parameter `name`. The tensor-parallel ranks' shapes are in
  // `slice_shapes`, in rank order; a slice can be empty. The first entry for the name decides:
  // affine map, replicated, averaged, two sub-parameters, sub-parameters. Without one it is a
  // concatenation, along dimension 1 if it is row parallel and 0 if not. All errors name file and
  // parameter. Throws InconsistentError for slices that do not fit the rule or one another, and for
  // two patterns of one list that match. Throws CorruptError for a rule that contradicts itself,
  // UnsupportedError as AffineAssembly does.
  Rule rule_for(const std::string& name, const std::vector<Shape>& slice_shapes);

  // True if there is a rule for the slices of `name`. If not, rule_for() takes it to be cut along
  // dimension 0, as DeepSpeed does.
  bool has_rule(const std::string& name) const;
  // The shapes of the ranks' slices of `name`, whose own shape is `whole`. An affine map tells
  // them, or the ranks' widths of sub-parameters; else nullopt. Throws as rule_for().
  std::optional<std::vector<Shape>> told_slices(const std::string& name, const Shape& whole) const;
  // The rule of a parameter that is the same on all ranks, whatever other rules say.
  static Rule replicated(const std::string& name, const std::vector<Shape>& slice_shapes);

  // Counts the file's rules for `name` as used: it is joined in another way.
  void pass_over(const std::string& name);
  // The user's patterns that no rule_for() call so far has used.
  std::vector<std::string> unused_user_rules() const;
  // The file's patterns that no rule_for() call so far has used, in the order in which they were
  // read. DeepSpeed's strict check wants none, if there was any parameter. Patterns of
  // pipeline_replicated_parameter_patterns and of the affine map are not among them. Patterns that
  // an affine map replaces count as used.
  std::vector<std::string> unused_patterns() const;

  // True if pipeline stages after the first have mere copies of the parameter, to be left out.
  bool is_pipeline_replicated(const std::string& name) const;

 private:
  struct Impl;
  explicit UniversalInfo(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Immutable, any thread; outlives the UniversalInfo.
class UniversalInfo::Rule {
 public:
  // The keys beside `param`. If a vocabulary pattern matches, vocab_rows is set. Then merge() keeps
  // the padding, and the caller cuts it off with narrow(0, 0, vocab_rows).
  const UniversalForm& form() const { return form_; }
  // The shape of the result of merge().
  const Shape& shape() const { return shape_; }
  // How the ranks share the parameter; nullptr if the rule does not say how others would share it.
  // A lone rank has it whole. Then the lists say it, if one of them is of parameters that every
  // rank has whole: all others are meant to be cut.
  const std::shared_ptr<const TpCut>& cut() const { return cut_; }
  // Takes `slices` in rank order, of the shapes given to rule_for(), else throws InconsistentError.
  // The `state` is "fp32", "exp_avg" ...: the error for copies that differ names it. States of
  // summed parameters are copies: each rank's part has the gradient of the sum.
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
  std::shared_ptr<const TpCut> cut_;
};

}  // namespace dsckpt
