#include "checkpoint/pipeline_layers.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/keyed_hash.h"
#include "base/text.h"
#include "deepspeed/keys.h"
#include "deepspeed/shard_name.h"
#include "dsckpt/error.h"
#include "format/meta_tensor.h"

namespace dsckpt {
namespace {

// A layer's files by tensor-parallel rank.
using LayerFiles = std::map<uint32_t, const Shard*>;
using Files = std::map<uint32_t, LayerFiles>;

std::string file_name(uint32_t layer, uint32_t tp, uint32_t tp_rank) {
  return "layer_" + two_digits(layer) + (tp > 1 ? "-model_" + two_digits(tp_rank) : "") +
         "-model_states.pt";
}

class LayersReader {
 public:
  LayersReader(CheckpointDraft& draft, const std::vector<std::string>& names)
      : draft_(draft), tp_(draft.facts.mesh.tp), fronts_(names) {
    for (const std::string& name : names) {
      if (!layer_front(name).empty()) continue;
      throw UnsupportedError({.file = draft.folder.path.string(), .tensor = name},
                             "is of a pipeline, but of none of its layers");
    }
  }

  std::vector<PipelineLayer> read() {
    const Files files = open();
    std::vector<PipelineLayer> layers;
    for (const auto& [index, shards] : files) {
      PipelineLayer layer{.index = index, .tensors = {}};
      const std::vector<std::string> keys = names_in_layer(*shards.begin()->second);
      const std::string front = fronts_.front_for(index, keys);
      for (const std::string& key : keys) layer.tensors.push_back(tensor(front, key, shards));
      layers.push_back(std::move(layer));
    }
    check_all_found();
    return layers;
  }

 private:
  Files open() {
    draft_.module_shards = open_shards(draft_.inputs, draft_.folder.of_kind(ShardName::Kind::layer),
                                       draft_.folder.path.parent_path());
    Files files;
    for (const Shard& shard : draft_.module_shards) {
      files[shard.name.layer].insert_or_assign(shard.name.mp_rank, &shard);
    }
    for (const auto& [index, layer] : files) {
      uint32_t next = 0;
      for (const auto& [tp_rank, shard] : layer) {
        if (next < tp_ && tp_rank != next) missing(index, next);
        if (tp_rank >= tp_) {
          throw InconsistentError({.file = draft_.folder.path.string()},
                                  shard->path.filename().string() + " is one too many: there are " +
                                      counted(tp_, "tensor-parallel rank"));
        }
        ++next;
      }
      if (next < tp_) missing(index, next);
    }
    return files;
  }

  [[noreturn]] void missing(uint32_t layer, uint32_t tp_rank, const std::string& name = {}) const {
    throw InconsistentError({.file = draft_.folder.path.string(), .tensor = name},
                            file_name(layer, tp_, tp_rank) + " is missing");
  }

  PipelineTensor tensor(const std::string& front, const std::string& key,
                        const LayerFiles& shards) {
    PipelineTensor tensor{.name = front + key, .slices = {}};
    found_.insert(tensor.name);
    for (const auto& [tp_rank, file] : shards) {
      const Shard* shard = file;
      in_context({.file = shard->display, .tensor = tensor.name}, [&] {
        const pickle::Value value = shard->archive.root().at(key);
        if (is_meta_tensor(value)) {
          const MetaTensor meta = meta_tensor(value);
          tensor.slices.push_back(TensorSource::zeros(meta.dtype, meta.shape));
          tensor.stripped = true;
        } else {
          tensor.slices.push_back(shard->archive.tensor(value));
        }
      });
    }
    return tensor;
  }

  void check_all_found() const {
    std::set<std::string> lost;
    for (const std::string& name : fronts_.names()) {
      if (!found_.contains(name)) lost.insert(name);
    }
    if (lost.empty()) return;
    const std::string& name = *lost.begin();
    const std::string_view front = layer_front(name);
    std::string why = "is in no layer's file";
    if (!front.starts_with(keys::kTiedModules)) {
      const auto index = static_cast<uint32_t>(std::stoul(std::string(front)));
      const bool there = std::any_of(draft_.module_shards.begin(), draft_.module_shards.end(),
                                     [&](const Shard& shard) { return shard.name.layer == index; });
      if (!there) missing(index, 0, name);
      why = "is not in " + file_name(index, tp_, 0);
    }
    throw InconsistentError({.file = draft_.folder.path.string(), .tensor = name}, why);
  }

  CheckpointDraft& draft_;
  uint32_t tp_;
  LayerFronts fronts_;
  KeyedSet<std::string> found_;
};

}  // namespace

LayerFronts::LayerFronts(const std::vector<std::string>& names)
    : names_(names.begin(), names.end()) {
  KeyedMap<std::string, size_t> numbers;  // by front
  for (const std::string& name : names) {
    const std::string front(layer_front(name));
    if (!front.starts_with(keys::kTiedModules)) continue;
    const auto [number, is_new] = numbers.emplace(front, tied_.size());
    if (is_new) tied_.push_back({front, {}});
    tied_[number->second].rests.push_back(name.substr(front.size()));
    tied_with_[tied_[number->second].rests.back()].insert(number->second);
  }
}

// A layer that is tied has none of its names under its number.
std::string LayerFronts::front_for(uint32_t index, const std::vector<std::string>& keys) {
  std::string plain = std::to_string(index) + ".";
  const bool fits = std::any_of(keys.begin(), keys.end(),
                                [&](const auto& key) { return names_.contains(plain + key); });
  const std::optional<size_t> found = fits ? std::nullopt : tied_for(keys);
  if (!found) return plain;
  for (const std::string& rest : tied_[*found].rests) tied_with_[rest].erase(*found);
  return tied_[*found].front;
}

// The first that has all of `keys`, else the first that has any.
std::optional<size_t> LayerFronts::tied_for(const std::vector<std::string>& keys) const {
  std::vector<const std::set<size_t>*> having;  // each key
  for (const std::string& key : keys) {
    const auto found = tied_with_.find(key);
    if (found != tied_with_.end() && !found->second.empty()) having.push_back(&found->second);
  }
  if (having.empty()) return std::nullopt;
  if (having.size() == keys.size()) {
    const std::set<size_t>& fewest =
        **std::min_element(having.begin(), having.end(),
                           [](const auto* a, const auto* b) { return a->size() < b->size(); });
    const auto all = std::find_if(fewest.begin(), fewest.end(), [&](size_t tied) {
      return std::all_of(having.begin(), having.end(),
                         [&](const auto* each) { return each->contains(tied); });
    });
    if (all != fewest.end()) return *all;
  }
  const auto first = [](const std::set<size_t>* each) { return *each->begin(); };
  return first(*std::min_element(having.begin(), having.end(), [&](const auto* a, const auto* b) {
    return first(a) < first(b);
  }));
}

std::optional<uint32_t> layer_number(std::string_view name) {
  uint32_t layer = 0;
  const auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), layer);
  const bool is_number = failed == std::errc() && end != name.data() + name.size() && *end == '.';
  return is_number ? std::optional(layer) : std::nullopt;
}

std::string_view layer_front(std::string_view name) {
  if (name.starts_with(keys::kTiedModules)) {
    const size_t dot = name.find('.', keys::kTiedModules.size());
    return dot == name.npos ? std::string_view() : name.substr(0, dot + 1);
  }
  return layer_number(name) ? name.substr(0, name.find('.') + 1) : std::string_view();
}

std::vector<std::string> names_in_layer(const Shard& shard) {
  std::vector<std::string> keys;
  in_context(shard.where(), [&] {
    for (const auto& [key, value] : shard.archive.root().as_dict().items) {
      if (TorchArchive::is_tensor(value) || is_meta_tensor(value)) {
        keys.emplace_back(key.as_string());
      }
    }
  });
  return keys;
}

std::vector<PipelineLayer> open_pipeline_layers(CheckpointDraft& draft,
                                                const std::vector<std::string>& names) {
  if (!draft.folder.has(ShardName::Kind::layer)) return {};
  return LayersReader(draft, names).read();
}

}  // namespace dsckpt
