#include "weights/weights_format.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/keyed_hash.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

std::string file_name(const WeightsFormat& format, size_t index, size_t count) {
  std::string suffix;
  if (count > 1) {
    std::array<char, 48> text{};
    std::snprintf(text.data(), text.size(), "-%05zu-of-%05zu", index + 1, count);
    suffix = text.data();
  }
  return std::string(format.stem) + suffix + std::string(format.extension);
}

// Returns the first name that JSON cannot hold, or "".
std::string bad_name(const WeightsSplit& split) {
  for (const WeightsSplit::File& file : split.files) {
    for (const OutputTensor& tensor : file.tensors) {
      try {
        nlohmann::json(tensor.name).dump();
      } catch (const nlohmann::json::type_error&) {
        return tensor.name;
      }
    }
  }
  return {};
}

// Tensors that share data have one key. torch gives all empty tensors the same null storage.
std::string storage_key(const OutputTensor& tensor) {
  if (tensor.source.numel() == 0) return {};
  return tensor.alias_of.empty() ? tensor.name : tensor.alias_of;
}

}  // namespace

WeightsSplit split_weights(const WeightsFormat& format, std::vector<OutputTensor> tensors,
                           uint64_t max_shard_size) {
  WeightsSplit split;
  if (max_shard_size == kOneFile) {  // torch.save(state_dict), which keeps the order
    split.files.push_back({file_name(format, 0, 1), std::move(tensors)});
    return split;
  }
  // The file of each tensor. For a tensor that shares data, the index of the first such tensor.
  std::vector<size_t> file_of(tensors.size());
  KeyedMap<std::string, size_t> owner_of_storage;
  size_t files = 0;
  constexpr size_t kNone = ~size_t{0};
  size_t open = kNone;  // the file that is being filled
  uint64_t filled = 0;
  std::vector<std::vector<size_t>> members;
  std::vector<size_t> followers;
  const auto add_file = [&] {
    members.emplace_back();
    return files++;
  };
  // The final order of the files. Large tensors get files of their own while another file is
  // filled, and huggingface_hub appends that one when it is closed.
  std::vector<size_t> order;

  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto [owner, first] = owner_of_storage.emplace(storage_key(tensors[i]), i);
    if (!first) {
      followers.push_back(i);
      file_of[i] = owner->second;
      continue;
    }
    const uint64_t size = tensors[i].source.nbytes();
    split.total_size += size;
    if (size > max_shard_size) {
      const size_t own = add_file();
      order.push_back(own);
      members[own].push_back(i);
      file_of[i] = own;
      continue;
    }
    if (open != kNone && filled + size > max_shard_size) {
      order.push_back(open);
      open = kNone;
    }
    if (open == kNone) {
      open = add_file();
      filled = 0;
    }
    members[open].push_back(i);
    file_of[i] = open;
    filled += size;
  }
  if (open != kNone) order.push_back(open);
  std::stable_sort(followers.begin(), followers.end(),
                   [&](size_t a, size_t b) { return file_of[a] < file_of[b]; });
  for (const size_t i : followers) members[file_of[file_of[i]]].push_back(i);

  for (size_t n = 0; n < order.size(); ++n) {
    WeightsSplit::File file{file_name(format, n, order.size()), {}};
    file.tensors.reserve(members[order[n]].size());
    for (const size_t i : members[order[n]]) file.tensors.push_back(std::move(tensors[i]));
    split.files.push_back(std::move(file));
  }
  return split;
}

std::optional<DType> type_of_most(std::span<const OutputTensor> tensors) {
  std::map<DType, int64_t> elements;
  for (const OutputTensor& tensor : tensors) {
    const DType type = tensor.source.dtype();
    if (is_floating_point(type)) elements[type] += tensor.source.numel();
  }
  const auto most =
      std::max_element(elements.begin(), elements.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == elements.end()) return std::nullopt;
  return most->first;
}

void lay_out_weights(PlanBuilder& plan, const WeightsFormat& format, const WeightsSplit& split) {
  for (const WeightsSplit::File& file : split.files) {
    format.lay_out(plan, file.path, file.tensors, split.metadata);
  }
  lay_out_index(plan, format, split);
}

void lay_out_index(PlanBuilder& plan, const WeightsFormat& format, const WeightsSplit& split) {
  if (split.files.size() < 2) return;
  nlohmann::json weight_map = nlohmann::json::object();
  for (const WeightsSplit::File& file : split.files) {
    const std::string name = file.path.substr(file.path.rfind('/') + 1);
    for (const OutputTensor& tensor : file.tensors) {
      if (tensor.alias_of.empty() || format.shares_storage) weight_map[tensor.name] = name;
    }
  }
  // These are the bytes of json.dumps(index, indent=2, sort_keys=True) + "\n".
  nlohmann::json metadata = split.metadata;
  metadata["total_size"] = split.total_size;
  const nlohmann::json index = {{"metadata", std::move(metadata)},
                                {"weight_map", std::move(weight_map)}};
  std::string text;
  try {
    text = index.dump(2, ' ', /*ensure_ascii=*/true) + "\n";
  } catch (const nlohmann::json::type_error&) {
    throw UnsupportedError({.file = std::string(format.index_name), .tensor = bad_name(split)},
                           "a name that is not UTF-8 cannot be written to the index");
  }
  plan.put_literal(plan.add_output(std::string(format.index_name), text.size()), 0, text);
}

bool is_weights_file(std::string_view file_name) {
  for (const WeightsFormat* format : {&kTorchBin, &kSafetensors}) {
    if (file_name == format->index_name ||
        (file_name.starts_with(format->stem) && file_name.ends_with(format->extension))) {
      return true;
    }
  }
  return false;
}

}  // namespace dsckpt
