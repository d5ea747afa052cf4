#include "format/training_file.h"

#include <algorithm>
#include <array>

#include "format/rank_tensor.h"
#include "format/tensors_in.h"
#include "format/torch_archive.h"

namespace dsckpt {
namespace {

using pickle::Kind;
using pickle::Value;

constexpr std::array<std::string_view, 5> kStepKeys{"global_step", "global_steps", "step", "steps",
                                                    "iteration"};

bool is_optimizer(const Value& value) {
  return value.is_mapping() && value.find_or_none("state").is_mapping() &&
         !value.find_or_none("param_groups").is_none() &&
         (value.find_or_none("param_groups").is(Kind::list) ||
          value.find_or_none("param_groups").is(Kind::tuple));
}

// Returns the number of dimensions of a tensor, plain or one rank's. Returns nullopt for other
// values.
std::optional<size_t> dims_of(const Value& value) {
  if (TorchArchive::is_tensor(value)) {
    const auto arguments = TorchArchive::view_arguments(value).sequence_or_empty();
    if (arguments.size() < 3) return std::nullopt;
    if (arguments[2].is(Kind::object)) return shape_from_pickle(arguments[2]).size();
    return arguments[2].sequence_or_empty().size();
  }
  if (is_rank_tensor(value)) return 1;
  return std::nullopt;
}

// Returns whether the value is a dict of names and tensors. At least one tensor must have
// dimensions, which metrics lack.
bool is_state_dict(const Value& value) {
  if (!value.is_mapping() || is_optimizer(value)) return false;
  bool has_some = false;
  for (const auto& [key, item] : value.as_dict().items) {
    if (!key.is(Kind::string)) return false;
    const std::optional<size_t> dims = dims_of(item);
    has_some = has_some || (dims && *dims > 0);
  }
  return has_some;
}

// Random states are tensors of bytes: torch.get_rng_state().
bool is_called_random(std::string_view key) {
  return key.find("rng") != key.npos || key.find("random") != key.npos;
}

void add_value(const std::string& key, const Value& value, TrainingFile& found) {
  if (is_optimizer(value)) {
    found.optimizers.push_back({key, value});
  } else if (is_state_dict(value) && !is_called_random(key)) {
    found.models.push_back({key, value});
  } else if (value.is(Kind::list) || value.is(Kind::tuple)) {
    // Lightning's `optimizer_states` is a list of optimizers.
    const auto items = value.as_sequence();
    if (!std::all_of(items.begin(), items.end(), is_optimizer)) return;
    for (const Value& item : items) found.optimizers.push_back({key, item});
  }
}

}  // namespace

std::string optimizer_key(const Value& key) {
  return key.is(Kind::string) ? std::string(key.as_string()) : std::to_string(key.as_int());
}

TrainingFile training_file(const Value& root) {
  TrainingFile found;
  if (is_optimizer(root)) {
    found.optimizers.push_back({"", root});
    return found;
  }
  if (!root.is_mapping()) return found;
  if (is_state_dict(root)) found.models.push_back({"", root});
  for (const auto& [key, value] : root.as_dict().items) {
    if (key.is(Kind::string)) add_value(std::string(key.as_string()), value, found);
  }
  for (const std::string_view key : kStepKeys) {
    const Value step = root.find_or_none(key);
    if (found.step || !step.is(Kind::integer)) continue;
    found.step = step.as_int();
  }
  return found;
}

std::string_view shard_by_keys(const Value& root) {
  if (!root.is_mapping()) return "";
  const auto has = [&](std::string_view key) { return root.find(key).has_value(); };
  if (has("optimizer_state_dict") && (has("ds_version") || has("ds_config"))) {
    return "optimizer states";
  }
  if (has("module") && (has("ds_version") || has("param_shapes") || has("global_steps")) &&
      (has("dp_world_size") || has("mp_world_size") || has("buffer_names"))) {
    return "model states";
  }
  const Value optimizer = root.find_or_none("optimizer_state_dict");
  if (optimizer.is_mapping() && optimizer.find("zero_stage")) return "optimizer states";
  const bool is_universal = has("param") && (has("cat_dim") || has("vocab_tensor") ||
                                             has("param_n_sub_params") || has("sub_param_shape"));
  return is_universal ? "a parameter of a universal checkpoint" : "";
}

}  // namespace dsckpt
