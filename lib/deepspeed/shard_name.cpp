#include "deepspeed/shard_name.h"

namespace dsckpt {
namespace {

// A cursor over a file name that takes it apart from the front.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : rest_(text) {}

  bool word(std::string_view expected) {
    if (!rest_.starts_with(expected)) return false;
    rest_.remove_prefix(expected.size());
    return true;
  }

  bool number(uint32_t& out) {
    uint64_t value = 0;
    size_t digits = 0;
    while (digits < rest_.size() && rest_[digits] >= '0' && rest_[digits] <= '9') {
      value = value * 10 + static_cast<uint64_t>(rest_[digits] - '0');
      if (++digits > 9) return false;
    }
    rest_.remove_prefix(digits);
    out = static_cast<uint32_t>(value);
    return digits > 0;
  }

  bool end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

}  // namespace

std::string two_digits(uint64_t number) {
  return (number < 10 ? "0" : "") + std::to_string(number);
}

std::string ShardName::file_name() const {
  const std::string mp = "mp_rank_" + two_digits(mp_rank);
  const std::string zero = "zero_pp_rank_" + std::to_string(dp_rank) + "_" + mp;
  switch (kind) {
    case Kind::model_states:
      return mp + "_model_states.pt";
    case Kind::zero_model_states:
      return zero + "_model_states.pt";
    case Kind::expert_optim:
      return "expp_rank_" + std::to_string(dp_rank) + "_" + mp + "_optim_states.pt";
    case Kind::optim_states:
      return (bf16 ? "bf16_" : "") + zero + (old_spelling ? "" : "_") + "optim_states.pt";
    case Kind::expert:
      return "layer_" + std::to_string(layer) + "_expert_" + std::to_string(expert) + "_" + mp +
             "_model_states.pt";
    case Kind::layer:
    case Kind::universal:
      break;
  }
  return {};
}

std::optional<ShardName> parse_shard_name(std::string_view file_name) {
  using Kinds = ShardName::Kind;
  ShardName name{.kind = Kinds::model_states};
  if (Scanner s(file_name);
      s.word("mp_rank_") && s.number(name.mp_rank) && s.word("_model_states.pt") && s.end()) {
    return name;
  }
  if (Scanner s(file_name); s.word("layer_") && s.number(name.layer)) {
    if (s.word("_expert_") && s.number(name.expert) && s.word("_mp_rank_") &&
        s.number(name.mp_rank) && s.word("_model_states.pt") && s.end()) {
      name.kind = Kinds::expert;
      return name;
    }
    if (s.word("-model_") && !s.number(name.mp_rank)) {
      // "-model_states.pt" without a tensor-parallel rank.
      name.kind = Kinds::layer;
      return s.word("states.pt") && s.end() ? std::optional(name) : std::nullopt;
    }
    if (s.word("-model_states.pt") && s.end()) {
      name.kind = Kinds::layer;
      return name;
    }
    return std::nullopt;
  }
  if (Scanner s(file_name); s.word("expp_rank_") && s.number(name.dp_rank) && s.word("_mp_rank_") &&
                            s.number(name.mp_rank) && s.word("_optim_states.pt") && s.end()) {
    name.kind = Kinds::expert_optim;
    return name;
  }
  Scanner s(file_name);
  name.bf16 = s.word("bf16_");
  if (!s.word("zero_pp_rank_") || !s.number(name.dp_rank) || !s.word("_mp_rank_") ||
      !s.number(name.mp_rank)) {
    return std::nullopt;
  }
  const bool underscore = s.word("_");
  if (s.word("optim_states.pt") && s.end()) {
    name.kind = Kinds::optim_states;
    name.old_spelling = !underscore;
    return name;
  }
  if (underscore && !name.bf16 && s.word("model_states.pt") && s.end()) {
    name.kind = Kinds::zero_model_states;
    return name;
  }
  return std::nullopt;
}

}  // namespace dsckpt
