// The keys of a state_dict that torch.distributed.checkpoint saved, taken apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/dcp_files.h"

namespace dsckpt {

// `name` without the parts that wrappers put into it: `_orig_mod.` (torch.compile),
// `_checkpoint_wrapped_module.`, `_fsdp_wrapped_module.`, and `module.` in front (DDP).
std::string without_wrappers(std::string_view name);

// Which values are a model's and which its optimizer's, by their keys (LAYOUTS.md).
class DcpKeys {
 public:
  // `model`: the name of one of several models; "": there is one. Throws InconsistentError, which
  // lists them, if several may be meant, and UsageError if none has this name.
  DcpKeys(std::vector<DcpEntry> entries, const std::string& model);

  struct Named {
    std::string name;  // of the parameter, as in the model
    std::string key;   // what it is: "exp_avg", "lr"
    DcpEntry entry;
  };
  struct Grouped {
    int64_t group;
    std::string key;
    DcpEntry entry;
  };
  // The entries of one optimizer.
  struct Optimizer {
    std::string front;  // what stands before "state" and "param_groups": "optim.", "optimizer_0."
    std::vector<Named> states = {};
    // The settings of groups, or of parameters, where the optimizer is flattened.
    std::vector<Grouped> grouped = {};
    std::vector<Named> flat_settings = {};
    // `param_groups` as torch 2.3 saves them: a list as one value.
    std::optional<DcpEntry> whole_groups = {};

    // True if parameters have numbers instead of names.
    bool is_numbered() const;
  };

  // The model's tensors; `key` is empty.
  const std::vector<Named>& model() const { return model_; }
  // The optimizer of that model, whose parameters are called as the model calls them, or by
  // numbers; nullptr if there is none.
  const Optimizer* optimizer() const { return optimizer_ < optimizers_.size() ? &own() : nullptr; }
  // The names of the optimizers, if several may be the model's.
  const std::vector<std::string>& rivals() const { return rivals_; }
  // Tensors of neither.
  const std::vector<DcpEntry>& left_out() const { return left_out_; }
  // The number of tensors that belong to other models and their optimizers.
  size_t of_others() const { return of_others_; }
  bool has_optimizers() const { return !optimizers_.empty(); }

 private:
  using Names = std::map<std::string, std::set<std::string>>;

  const Optimizer& own() const { return optimizers_[optimizer_]; }
  void find_optimizers();

  // The optimizer that `key` is of, and what it has behind its front; nullptr if it is of none.
  std::pair<Optimizer*, std::string_view> owner_of(std::string_view key);

  static void add_entry(Optimizer& optimizer, std::string_view rest, const DcpEntry& entry);

  // The part before a tensor's name in the model: the keys of the dicts that it was in.
  static std::string front_of(const DcpEntry& entry);

  void find_model(const std::string& model);
  void find_optimizer(const std::string& front, const std::string& model, const Names& names);
  void rename_params();

  // True if all parameters that the optimizer names are among `names`.
  static bool fits(const Optimizer& optimizer, const std::set<std::string>& names);

  // The front of the model; nullopt: all are one model's, dicts of the user's own.
  std::optional<std::string> chosen_front(const Names& names, const std::string& model) const;

  std::vector<DcpEntry> entries_;
  std::vector<Optimizer> optimizers_;  // rising by front
  std::set<size_t> front_sizes_;       // how long these are
  std::vector<DcpEntry> others_;       // tensors that are not an optimizer's
  std::vector<Named> model_;
  std::vector<DcpEntry> left_out_;
  size_t of_others_ = 0;
  size_t optimizer_ = ~size_t{0};
  std::vector<std::string> rivals_;
};

}  // namespace dsckpt
