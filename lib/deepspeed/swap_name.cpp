#include "deepspeed/swap_name.h"

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

#include "deepspeed/shard_name.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

constexpr std::string_view kSwapSuffix = ".tensor.swp";

std::optional<uint64_t> plain_number(std::string_view text) {
  uint64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool all = error == std::errc() && rest == text.data() + text.size();
  return all && std::to_string(value) == text ? std::optional(value) : std::nullopt;
}

}  // namespace

SubGroupId SubGroupId::parse(const std::string& ds_id) {
  const std::string_view text = ds_id;
  const size_t middle = text.find('_');
  const auto first = plain_number(text.substr(0, middle));
  const auto last = middle == text.npos ? std::nullopt : plain_number(text.substr(middle + 1));
  if (!first || !last) {
    throw CorruptError({}, "has the ds_id '" + ds_id + "', which is not FIRST_LAST");
  }
  return {*first, *last};
}

std::string SubGroupId::to_string() const {
  return std::to_string(first) + "_" + std::to_string(last);
}

std::filesystem::path swap_file_name(uint64_t rank, const std::string& ds_id) {
  if (ds_id.find('/') != ds_id.npos || ds_id.find('\0') != ds_id.npos) {
    throw CorruptError({}, "has a ds_id that is not a file name");
  }
  return std::filesystem::path("rank" + two_digits(rank)) / (ds_id + std::string(kSwapSuffix));
}

}  // namespace dsckpt
