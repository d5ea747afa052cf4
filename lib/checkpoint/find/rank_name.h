// The names of files that each have one rank's state_dict.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dsckpt {

// "model_world_size_4_rank_2.pt" (verl, SkyRL: model_, optim_, extra_state_). Custom programs use
// other names: "model_0000999.rank_2.pth", "model-rank2.pt".
struct RankName {
  std::string front;  // "model_world_size_4_rank_"
  uint32_t rank = 0;
  std::string back;                    // ".pt"
  std::optional<uint32_t> ranks = {};  // how many there are, where the name says it
  std::string of_rank(uint64_t number) const { return front + std::to_string(number) + back; }
  // The file of the same rank that holds another kind of state: "optim" for "model".
  std::string sibling(std::string_view kind) const;
};

// nullopt for the name of anything else, and for DeepSpeed's. Only the bytes prove the kind of
// file.
std::optional<RankName> parse_rank_name(std::string_view file_name);

}  // namespace dsckpt
