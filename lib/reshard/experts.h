// Experts under another number of expert-parallel ranks: which of them a rank has, and their names
// there.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/keyed_hash.h"
#include "reshard/run_facts.h"

namespace dsckpt {

// The name of a parameter group of experts, "ep_size_4", and what it begins with. utils/groups.py.
inline constexpr std::string_view kExpertGroup = "ep_size_";
std::string expert_group_name(uint32_t ep);

// How the ranks share the experts of a group.
struct ExpertMesh {
  uint32_t dp = 1;
  uint32_t ep = 1;           // divides dp
  bool data_before = false;  // use_data_before_expert_parallelism

  // Ranks that have the same experts.
  uint32_t edp() const { return dp / ep; }
  // utils/groups.py _create_expert_and_data_parallel.
  uint32_t ep_rank(uint32_t rank) const { return data_before ? rank / edp() : rank % ep; }
  uint32_t edp_rank(uint32_t rank) const { return data_before ? rank % edp() : rank / ep; }
  uint32_t rank_of(uint32_t ep_rank, uint32_t edp_rank) const {
    return data_before ? ep_rank * edp() + edp_rank : edp_rank * ep + ep_rank;
  }
};

// The experts of a world. Borrows its entries, and merges the experts among them: DeepSpeed's own
// by their global names, AutoEP's as one tensor of all.
class ExpertNames {
 public:
  // `folder`: where the world's files are, for messages.
  ExpertNames(std::span<const Param> params, std::string folder);

  // The part of a parameter that expert-parallel rank `ep_rank` of `ep` has and calls `local`.
  // Throws UsageError if `ep` does not divide the experts, UnsupportedError for a name that is not
  // an expert's.
  Param local(const std::string& local, uint32_t ep_rank, uint32_t ep) const;
  // The parameter of the checkpoint that it is, or is a part of.
  const Param& global(const std::string& local, uint32_t ep_rank, uint32_t ep) const;
  // True if all ranks have a parameter of `group` alike.
  bool is_shared(const RunGroup& group, const std::string& local) const;
  // The names in the checkpoint of a group's parameters, each once. Borrows both.
  std::vector<std::string_view> members_of(const RunGroup& group) const;

  // The expert groups in `groups` as an engine of `ep` expert-parallel ranks makes them, experts by
  // their names on their own rank. Throws as local(), and for groups that are not in the order of
  // the model or were split by a size other than DeepSpeed's own.
  void regroup(std::vector<RunGroup>& groups, uint32_t ep) const;

 private:
  int64_t count_on_rank(const std::string& name, uint32_t ep) const;
  std::vector<std::string> renamed(const std::vector<std::string>& names, uint32_t old_ep,
                                   uint32_t new_ep) const;
  int64_t numel_of(const std::vector<std::string>& names, uint32_t ep) const;
  std::vector<std::vector<std::string>> split(const std::vector<std::string>& names,
                                              uint32_t ep) const;

  const Param* find(const std::string& name) const;

  std::string folder_;
  KeyedMap<std::string_view, const Param*> experts_;  // by name
  // The counts of DeepSpeed's own experts, by the part of the name before the number.
  KeyedMap<std::string, int64_t> counts_;
};

}  // namespace dsckpt
