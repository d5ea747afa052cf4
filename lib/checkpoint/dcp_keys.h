// The keys of a state_dict that torch.distributed.checkpoint saved, taken apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/dcp_files.h"

namespace dsckpt {

// Which values are the model's and which an optimizer's, by their keys (LAYOUTS.md).
class DcpKeys {
 public:
  explicit DcpKeys(std::vector<DcpEntry> entries);

  struct Named {
    std::string name;  // of the parameter
    std::string key;   // what it is: "exp_avg", "lr"
    DcpEntry entry;
  };
  struct Grouped {
    int64_t group;
    std::string key;
    DcpEntry entry;
  };

  // What stands before "state" and "param_groups" of each: "optim.", "optimizer_0.", "".
  const std::vector<std::string>& optimizers() const { return optimizers_; }
  // The model's tensors; `key` is empty.
  const std::vector<Named>& model() const { return model_; }
  // Tensors of neither.
  const std::vector<DcpEntry>& left_out() const { return left_out_; }
  const std::vector<Named>& states() const { return states_; }
  // The settings of groups, or of parameters, where the optimizer is flattened.
  const std::vector<Grouped>& grouped() const { return grouped_; }
  const std::vector<Named>& flat_settings() const { return flat_settings_; }
  // `param_groups` as torch 2.3 saves them: a list as one value.
  const DcpEntry* whole_groups() const { return whole_groups_ ? &*whole_groups_ : nullptr; }

 private:
  void find_optimizers();

  // What `key` has behind its optimizer's front; nullopt if it is no optimizer's.
  std::optional<std::string_view> behind_front(std::string_view key) const;
  bool is_optimizers(const DcpEntry& entry) const { return behind_front(entry.name()).has_value(); }

  void add_optimizer_entry(const DcpEntry& entry);

  // What stands before a tensor's name in the model: the keys of the dicts that it was in.
  static std::string front_of(const DcpEntry& entry);

  void find_model();

  // Whether parameters have numbers instead of names.
  bool is_numbered() const;

  // The model's among several; nullptr where nothing tells.
  const std::string* chosen_front(
      const std::map<std::string, std::set<std::string_view>>& names) const;

  std::vector<DcpEntry> entries_;
  std::vector<std::string> optimizers_;  // rising
  std::set<size_t> front_sizes_;         // how long these are
  std::vector<DcpEntry> others_;         // tensors that are no optimizer's
  std::vector<Named> model_;
  std::vector<DcpEntry> left_out_;
  std::vector<Named> states_;
  std::vector<Grouped> grouped_;
  std::vector<Named> flat_settings_;
  std::optional<DcpEntry> whole_groups_;
};

}  // namespace dsckpt
