#include "checkpoint/find/rank_name.h"

#include <charconv>

#include "base/text.h"
#include "deepspeed/shard_name.h"

namespace dsckpt {
namespace {

constexpr std::string_view kRank = "rank";
constexpr std::string_view kWorld = "world_size_";
constexpr std::string_view kModelWord = "model";

std::optional<uint32_t> number_at(std::string_view text, size_t at, size_t& end) {
  uint32_t number = 0;
  const auto [next, error] = std::from_chars(text.data() + at, text.data() + text.size(), number);
  if (error != std::errc() || next == text.data() + at) return std::nullopt;
  end = static_cast<size_t>(next - text.data());
  return number;
}

}  // namespace

std::string RankName::sibling(std::string_view kind) const {
  std::string name = of_rank(rank);
  const size_t at = name.find(kModelWord);
  return at == name.npos ? std::string() : name.replace(at, kModelWord.size(), kind);
}

std::optional<RankName> parse_rank_name(std::string_view file_name) {
  if (parse_shard_name(file_name)) return std::nullopt;
  const size_t dot = file_name.rfind('.');
  if (dot == file_name.npos) return std::nullopt;
  const std::string_view ending = file_name.substr(dot);
  if (ending != ".pt" && ending != ".pth" && ending != ".bin") return std::nullopt;
  const size_t word = file_name.rfind(kRank);
  if (word == file_name.npos) return std::nullopt;
  size_t at = word + kRank.size();
  if (at < file_name.size() && (file_name[at] == '_' || file_name[at] == '-')) ++at;
  size_t end = 0;
  const std::optional<uint32_t> rank = number_at(file_name, at, end);
  if (!rank || (file_name[at] == '0' && end > at + 1)) return std::nullopt;
  RankName name{.front = std::string(file_name.substr(0, at)),
                .rank = *rank,
                .back = std::string(file_name.substr(end))};
  const size_t world = file_name.find(kWorld);
  if (world != file_name.npos && world < at) {
    size_t ignored = 0;
    name.ranks = number_at(file_name, world + kWorld.size(), ignored);
  }
  return name;
}

}  // namespace dsckpt
