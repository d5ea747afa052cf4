// Parses the names of shard files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dsckpt {

// engine.py: _get_ckpt_name, _get_zero_ckpt_name, _get_optimizer_ckpt_name.
struct ShardName {
  enum class Kind : uint8_t {
    model_states,       // mp_rank_MM_model_states.pt
    zero_model_states,  // zero_pp_rank_D_mp_rank_MM_model_states.pt
    optim_states,       // [bf16_]zero_pp_rank_D_mp_rank_MM_optim_states.pt
    layer,              // layer_LL[-model_TT]-model_states.pt: pipeline parallelism
    expert,             // layer_L_expert_E_mp_rank_MM_model_states.pt
    expert_optim,       // expp_rank_R_mp_rank_MM_optim_states.pt
    universal,          // any file below zero/ of a universal checkpoint: no rank's
  };
  Kind kind;
  uint32_t dp_rank = 0;
  uint32_t mp_rank = 0;
  bool bf16 = false;
  bool old_spelling = false;  // "..._mp_rank_00optim_states.pt"
  uint32_t layer = 0;         // of kinds layer and expert
  uint32_t expert = 0;        // of kind expert: the global number

  bool operator==(const ShardName&) const = default;
  // True for the same shard of the same rank, whatever the spelling and prefix.
  bool same_rank(const ShardName& other) const {
    return kind == other.kind && dp_rank == other.dp_rank && mp_rank == other.mp_rank &&
           layer == other.layer && expert == other.expert;
  }
  // The file name with ".pt"; "" for kinds layer and universal.
  std::string file_name() const;
};

// "07": the form of tensor-parallel ranks and layers in names.
std::string two_digits(uint64_t number);

// nullopt if `file_name` (with ".pt") is not the name of a rank's shard.
std::optional<ShardName> parse_shard_name(std::string_view file_name);

}  // namespace dsckpt
