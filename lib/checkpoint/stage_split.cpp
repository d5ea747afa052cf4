#include "checkpoint/stage_split.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <unordered_set>
#include <utility>

#include "base/keyed_hash.h"
#include "checkpoint/flat_states.h"
#include "deepspeed/keys.h"
#include "dsckpt/error.h"
#include "format/meta_tensor.h"

namespace dsckpt {
namespace {

using pickle::Value;

// How many parameters of each shape.
using Shapes = std::map<Shape, size_t>;

// The parameters that an optimizer holds; nullopt if it does not tell the shape of each, or if they
// are more than `most`.
std::optional<Shapes> shapes_of(const Fields& optimizer, size_t most) {
  const TorchArchive& archive = optimizer.shard().archive;
  Shapes shapes;
  if (optimizer.has(keys::kFp32Groups)) {
    for (const Value& group : optimizer.sequence(keys::kFp32Groups)) {
      const auto masters = group.sequence_or_empty();
      if (masters.size() > most) return std::nullopt;
      most -= masters.size();
      for (const Value& master : masters) ++shapes[archive.info(master).shape];
    }
    return shapes;
  }
  const auto states = optimizer.get("state");
  if (!states || !states->is_mapping()) return std::nullopt;
  size_t params = 0;
  for (const Value& group : optimizer.sequence(keys::kParamGroups)) {
    params += group.find_or_none("params").sequence_or_empty().size();
  }
  for (const auto& [number, state] : states->as_dict().items) {
    if (!state.is_mapping()) return std::nullopt;
    in_context(optimizer.where("state"), [&, &of_one = state] { check_count(of_one.as_dict()); });
    for (const auto& [key, value] : state.as_dict().items) {
      const bool is_step = key.is(pickle::Kind::string) && key.as_string() == "step";
      const auto shape = shape_with_or_without_values(archive, value);
      if (is_step || !shape) continue;
      ++shapes[*shape];
      --params;
      break;
    }
  }
  if (params != 0) return std::nullopt;
  return shapes;
}

// The keys of tied modules that a pattern or a name spells out: "tied_modules.embed." of
// R"(^tied_modules\.embed\..*)".
void add_tied_fronts(const std::string& pattern, KeyedSet<std::string>& known,
                     std::vector<std::string>& fronts) {
  std::string text;
  for (const char c : pattern) {
    if (c != '\\') text += c;
  }
  const size_t begin = text.find(keys::kTiedModules);
  if (begin == text.npos) return;
  const size_t end =
      text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-",
                             begin + keys::kTiedModules.size());
  if (end == text.npos || text[end] != '.' || end == begin + keys::kTiedModules.size()) return;
  std::string front = text.substr(begin, end + 1 - begin);
  if (known.insert(front).second) fronts.push_back(std::move(front));
}

class Splitter {
 public:
  Splitter(std::vector<PipelineLayer>& layers, const std::set<std::string>& buffer_names,
           size_t most_tied)
      : most_tied_(most_tied) {
    for (PipelineLayer& layer : layers) {
      Layer found{.layer = &layer, .params = {}, .shapes = {}};
      for (PipelineTensor& tensor : layer.tensors) {
        if (buffer_names.contains(tensor.name)) continue;
        found.params.push_back(&tensor);
        ++found.shapes[tensor.slices.front().shape()];
      }
      if (!found.params.empty()) layers_.push_back(std::move(found));
    }
  }

  struct Layer {
    PipelineLayer* layer;
    std::vector<PipelineTensor*> params;
    Shapes shapes;
  };
  // The layers from `begin` to `end`, and those of earlier stages that it shares.
  struct Stage {
    size_t begin;
    size_t end;
    std::vector<size_t> shared;
  };

  const std::vector<Layer>& layers() const { return layers_; }

  // The one way to split them, or none.
  std::optional<std::vector<Stage>> split(const std::vector<Shapes>& stages) {
    stages_ = &stages;
    search({}, 0);
    if (found_ != 1) return std::nullopt;
    return way_;
  }

 private:
  // The number of shapes that are looked at.
  static constexpr size_t kMaxSteps = 1 << 24;

  void search(std::vector<Stage> so_far, size_t begin) {
    const std::pair at(so_far.size(), begin);
    const size_t found_before = found_;
    if (found_ > 1 || dead_ends_.contains(at)) return;
    if (so_far.size() == stages_->size()) {
      if (begin != layers_.size()) return;
      ++found_;
      way_ = std::move(so_far);
      return;
    }
    for (const std::vector<size_t>& shared : choices(begin)) {
      const Shapes& held = (*stages_)[so_far.size()];
      steps_ += 1 + held.size();
      if (found_ > 1 || steps_ > kMaxSteps) break;
      Shapes rest = held;
      bool fits = true;
      for (const size_t layer : shared) fits = fits && take(rest, layers_[layer].shapes);
      size_t end = begin;
      for (; fits && end <= layers_.size(); ++end) {
        if (rest.empty()) {
          std::vector<Stage> next = so_far;
          next.push_back({begin, end, shared});
          search(std::move(next), end);
          break;
        }
        fits = end < layers_.size() && take(rest, layers_[end].shapes);
        ++steps_;
      }
    }
    if (steps_ > kMaxSteps) found_ = 2;
    if (found_ == found_before) dead_ends_.insert(at);
  }

  // Removes `shapes` from `rest` if they are all there.
  static bool take(Shapes& rest, const Shapes& shapes) {
    for (const auto& [shape, count] : shapes) {
      const auto found = rest.find(shape);
      if (found == rest.end() || found->second < count) return false;
      found->second -= count;
      if (found->second == 0) rest.erase(found);
    }
    return true;
  }

  // Which earlier layers a stage may share: none, one, or as many as tied modules are known.
  std::vector<std::vector<size_t>> choices(size_t begin) const {
    std::vector<std::vector<size_t>> all{{}};
    for (size_t i = 0; i < begin; ++i) {
      const size_t before = all.size();
      for (size_t k = 0; k < before && all.size() < 4096; ++k) {
        if (all[k].size() >= most_tied_) continue;
        all.push_back(all[k]);
        all.back().push_back(i);
      }
    }
    return all;
  }

  size_t most_tied_;
  std::vector<Layer> layers_;
  const std::vector<Shapes>* stages_ = nullptr;
  size_t found_ = 0;
  size_t steps_ = 0;
  // Stages that are dealt and where the next one begins, from where no way goes on to the end.
  std::set<std::pair<size_t, size_t>> dead_ends_;
  std::vector<Stage> way_;
};

std::vector<std::string> tied_fronts(const CheckpointDraft& draft,
                                     const std::set<std::string>& buffer_names) {
  std::vector<std::string> fronts;
  KeyedSet<std::string> known;
  std::unordered_set<const void*> seen;  // a list may have one text very often
  const Shard& shard = draft.model_shards.front();
  const Value info = shard.archive.root().find_or_none(keys::kUniversalCheckpointInfo);
  for (const Value& pattern : info.find_or_none(keys::kPipelineReplicated).sequence_or_empty()) {
    if (!pattern.is(pickle::Kind::string) || !seen.insert(pattern.identity()).second) continue;
    add_tied_fronts(std::string(pattern.as_string()), known, fronts);
  }
  for (const std::string& name : buffer_names) {
    if (name.starts_with("tied_modules.")) add_tied_fronts(name, known, fronts);
  }
  return fronts;
}

}  // namespace

StageSplit split_stages(CheckpointDraft& draft,
                        const std::vector<std::optional<Fields>>& optimizers,
                        std::vector<PipelineLayer>& layers,
                        const std::set<std::string>& buffer_names) {
  const std::vector<std::string> fronts = tied_fronts(draft, buffer_names);
  Splitter splitter(layers, buffer_names, std::max<size_t>(1, fronts.size()));
  std::optional<std::vector<Splitter::Stage>> way;
  std::vector<Shapes> held;
  size_t param_count = 0;
  for (const Splitter::Layer& layer : splitter.layers()) param_count += layer.params.size();
  bool has_masters = false;
  for (const auto& optimizer : optimizers) {
    if (!optimizer) continue;
    has_masters =
        has_masters || optimizer->has(keys::kFp32Groups) || optimizer->has(keys::kFp32GroupsFlat);
    if (auto shapes = shapes_of(*optimizer, param_count)) held.push_back(std::move(*shapes));
  }
  if (held.size() == optimizers.size()) way = splitter.split(held);

  StageSplit split{.of_stage = {}, .known = way.has_value()};
  split.of_stage.resize(optimizers.size());
  if (!way) {
    if (has_masters) {
      throw UnsupportedError({.file = draft.folder.path.string()},
                             "does not tell the layers of each pipeline stage's masters");
    }
    draft.facts.states = StatesTold::no;
    draft.facts.frozen_known = false;
    for (const Splitter::Layer& layer : splitter.layers()) {
      split.of_stage[0].insert(split.of_stage[0].end(), layer.params.begin(), layer.params.end());
    }
    return split;
  }
  std::set<size_t> tied;
  for (const Splitter::Stage& stage : *way) tied.insert(stage.shared.begin(), stage.shared.end());
  size_t next = 0;
  for (const size_t i : tied) {
    const uint32_t index = splitter.layers()[i].layer->index;
    const std::string plain = std::to_string(index) + ".";
    if (next == fronts.size()) {
      draft.notes.push_back("layer " + std::to_string(index) +
                            " is tied, and no file says under which key: it is called '" + plain +
                            "', where the engine has 'tied_modules.KEY.'");
      continue;
    }
    for (PipelineTensor& tensor : splitter.layers()[i].layer->tensors) {
      if (tensor.name.starts_with(plain)) tensor.name.replace(0, plain.size(), fronts[next]);
    }
    ++next;
  }
  for (size_t s = 0; s < way->size(); ++s) {
    const auto add = [&](size_t i) {
      const auto& params = splitter.layers()[i].params;
      split.of_stage[s].insert(split.of_stage[s].end(), params.begin(), params.end());
    };
    const Splitter::Stage& stage = (*way)[s];
    for (const size_t i : stage.shared) add(i);
    for (size_t i = stage.begin; i < stage.end; ++i) {
      if (tied.contains(i)) add(i);
    }
    for (size_t i = stage.begin; i < stage.end; ++i) {
      if (!tied.contains(i)) add(i);
    }
  }
  return split;
}

}  // namespace dsckpt
