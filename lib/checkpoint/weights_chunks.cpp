#include "checkpoint/weights_chunks.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/dtype_names.h"
#include "base/json.h"
#include "base/text.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

using nlohmann::json;

constexpr std::string_view kShardingInfo = "DCP_SHARDING_INFO";
constexpr const char* kSavedOffsets = "saved_offsets";

Shape offsets_in(const json& sharding, const SafetensorsEntry& entry) {
  const auto found = sharding.find(entry.name);
  const json* offsets = nullptr;
  if (found != sharding.end() && found->is_object()) {
    const auto saved = found->find(kSavedOffsets);
    if (saved != found->end() && saved->is_array()) offsets = &*saved;
  }
  if (offsets == nullptr || offsets->size() != entry.shape.size()) {
    throw CorruptError({}, "the header does not say where it begins in each of its " +
                               counted(entry.shape.size(), "dimension"));
  }
  Shape shape;
  for (size_t d = 0; d < entry.shape.size(); ++d) {
    const json& offset = (*offsets)[d];
    const auto most = static_cast<uint64_t>(std::numeric_limits<int64_t>::max() - entry.shape[d]);
    if (!offset.is_number_unsigned() || offset.get<uint64_t>() > most) {
      throw CorruptError({}, "begins at " + offset.dump() + " in dimension " + std::to_string(d));
    }
    shape.push_back(static_cast<int64_t>(offset.get<uint64_t>()));
  }
  return shape;
}

}  // namespace

bool has_chunks(const SafetensorsFile& file) {
  return file.metadata().contains(std::string(kShardingInfo));
}

void WeightsChunks::add(const InputFile& input, const SafetensorsFile& file) {
  const Where header{.file = input.display(), .member = std::string(kShardingInfo)};
  const json sharding = parse_json(file.metadata().at(std::string(kShardingInfo)));
  if (!sharding.is_object()) throw CorruptError(header, "is not a JSON object");
  for (const SafetensorsEntry& entry : file.entries()) {
    in_context({.file = input.display(), .tensor = entry.name}, [&] {
      Shape offsets = offsets_in(sharding, entry);
      const auto [at, is_new] = by_name_.emplace(entry.name, tensors_.size());
      if (is_new) {
        tensors_.push_back({entry.name, input.display(), entry.dtype, offsets, {}});
      }
      add_chunk(tensors_[at->second], input, entry, std::move(offsets), file.tensor(entry));
    });
  }
}

void WeightsChunks::add_chunk(Tensor& tensor, const InputFile& input, const SafetensorsEntry& entry,
                              Shape offsets, TensorSource value) {
  if (entry.dtype != tensor.dtype || offsets.size() != tensor.shape.size()) {
    throw InconsistentError({.file = input.display(), .tensor = entry.name},
                            "is " + std::string(torch_name(entry.dtype)) + " " +
                                to_text(entry.shape) + ", but in " + tensor.display + " " +
                                std::string(torch_name(tensor.dtype)) + " of " +
                                counted(tensor.shape.size(), "dimension"));
  }
  for (size_t d = 0; d < offsets.size(); ++d) {
    tensor.shape[d] = std::max(tensor.shape[d], offsets[d] + entry.shape[d]);
  }
  tensor.boxes[{std::move(offsets), entry.shape}].push_back(std::move(value));
}

std::vector<WeightsChunks::Whole> WeightsChunks::take() && {
  std::vector<Whole> wholes;
  for (Tensor& tensor : tensors_) {
    std::vector<TensorBox> boxes;
    for (auto& [place, copies] : tensor.boxes) {
      if (numel(place.second) == 0) continue;
      boxes.push_back(
          {place.first, TensorSource::same(std::move(copies), "chunks of '" + tensor.name +
                                                                  "' at " + to_text(place.first))});
    }
    wholes.push_back({tensor.name, in_context({.file = tensor.display, .tensor = tensor.name}, [&] {
                        return join_boxes(tensor.dtype, tensor.shape, std::move(boxes));
                      })});
  }
  return wholes;
}

}  // namespace dsckpt
