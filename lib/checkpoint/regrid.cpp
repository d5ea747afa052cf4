#include "checkpoint/regrid.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "checkpoint/experts.h"
#include "checkpoint/layout.h"
#include "checkpoint/other_values.h"
#include "checkpoint/pipeline_layers.h"
#include "deepspeed/keys.h"
#include "deepspeed/shard_name.h"
#include "dsckpt/error.h"

namespace dsckpt {
using pickle::Kind;
using pickle::Value;
namespace {

// "tied_modules.embed." of "tied_modules.embed.weight"; "" of another name.
std::string tied_front(const std::string& name) {
  if (!name.starts_with(keys::kTiedModules)) return {};
  const size_t dot = name.find('.', keys::kTiedModules.size());
  return dot == name.npos ? std::string() : name.substr(0, dot + 1);
}

std::optional<int64_t> integer_in(const Value& mapping, std::string_view key) {
  const Value value = mapping.find_or_none(key);
  return value.is(Kind::integer) ? std::optional(value.as_int()) : std::nullopt;
}

int64_t rounded_up(int64_t number, int64_t unit) {
  return (number + unit - 1) / unit * unit;
}

bool is_listed(const std::vector<uint32_t>& numbers, uint32_t number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

// True if AutoTP cuts the weight of a module by the model's key-value heads, not by rows.
// module_inject/tp_shard.py get_shard_size.
bool is_cut_by_heads(std::string_view module) {
  constexpr std::array<std::string_view, 7> kByRows{"mlp", "gate_proj", "up_proj", "down_proj",
                                                    "w1",  "w2",        "w3"};
  return module != "lm_head" && module != "embed_out" &&
         std::none_of(kByRows.begin(), kByRows.end(),
                      [&](std::string_view part) { return module.find(part) != module.npos; });
}

// The units, in rows, that AutoTP does not divide in a parameter. It knows the module by its whole
// name or, without a partition_config, by the last two parts: there may be two answers.
std::pair<int64_t, int64_t> autotp_units(std::string_view param, int64_t rows, int64_t kv_heads) {
  const std::string_view module = param.substr(0, std::min(param.rfind('.'), param.size()));
  const size_t last = module.rfind('.');
  const size_t before =
      last == module.npos || last == 0 ? module.npos : module.rfind('.', last - 1);
  const std::string short_name =
      last == module.npos ? "." + std::string(module)
                          : std::string(module.substr(before == module.npos ? 0 : before + 1));
  const auto unit = [&](std::string_view name) {
    return rows % kv_heads == 0 && is_cut_by_heads(name) ? rows / kv_heads : 1;
  };
  return {unit(module), unit(short_name)};
}

// An earlier stage compares them.
void compare_no_copies(Param& param) {
  param.weight = param.weight.one_copy();
  for (ParamState& state : param.states) state.value = state.value.one_copy();
}

// The layers of a pipeline; a few bytes may name one of any number.
constexpr uint32_t kMostLayers = 1 << 20;
// Numbers in a message that may be a layer's.
constexpr size_t kMostListed = 10;
constexpr const char* kLayersHint =
    "--like CHECKPOINT takes the layers from a checkpoint that the new run has saved";
constexpr const char* kVocabHint = "--padded-vocab-size says how many there are";

// Refuses checkpoints that are not cut anew, whatever the grid.
void refuse_source(const Checkpoint& source) {
  const CheckpointFacts& facts = source.facts();
  const Where where{.file = source.tag_folder().string()};
  if (facts.run != RunKind::native && facts.run != RunKind::universal) {
    throw UnsupportedError(where,
                           "is not in the files of ZeRO's ranks, whose tensor-parallel ranks "
                           "and pipeline stages could become others");
  }
  const Value root = source.files().model.front().archive->root();
  if (facts.run == RunKind::universal &&
      !root.find_or_none("num_experts").sequence_or_empty().empty()) {
    throw UnsupportedError(where, "has experts, whose files a universal checkpoint does not have")
        .with_hint("DeepSpeed loads it on any grid, with checkpoint.load_universal");
  }
  if (facts.changed) {
    throw UsageError(
        "other names or parameters are not given while the tensor-parallel ranks or pipeline "
        "stages change")
        .with_hint("reshard twice");
  }
  if (source.groups().empty()) {
    throw UnsupportedError(where,
                           "does not tell the optimizer's parameter groups, or its pipeline "
                           "stages and tensor-parallel ranks have different ones");
  }
}

// The fields of the arguments that a program saved: Megatron's Namespace or NeoX's dict; None if it
// saved none.
Value saved_arguments(const Value& root) {
  const Value args = root.find_or_none(keys::kArguments);
  if (args.is(Kind::object) && args.as_object().has_state) return args.as_object().state;
  return args.is_mapping() ? args : Value();
}

}  // namespace

Regrid::Regrid(const Checkpoint& source, const GridOptions& options)
    : source_(source), run_(source.run()), old_(source.facts().mesh), mesh_(old_) {
  refuse_source(source);
  // Throws why a universal checkpoint's ranks have no parts of the whole.
  if (is_universal() && source.facts().model_parallel) run_.draft_of_world(0);
  args_ = saved_arguments(source.files().model.front().archive->root());
  mesh_.tp = options.tp.value_or(old_.tp);
  mesh_.pp = options.pp.value_or(old_.pp);
  if (options.held != nullptr) held_ = *options.held;
  find_layers(options);
  check_grid(options);
  check_experts();
  kv_heads_ = options.kv_heads;
  check_heads();
  note_random_states();
  choose_vocabulary(options);
  find_modules();
  if (!is_pipeline()) return;
  place_tied();
  choose_stages(options);
}

void Regrid::check_grid(const GridOptions& options) const {
  if (is_pipeline()) return;
  if (mesh_.pp > 1) {
    throw UsageError(
        "the model is not a pipeline: it has no files of layers, and nothing tells how it "
        "becomes " +
        counted(mesh_.pp, "stage"));
  }
  if (!options.stages.empty()) throw UsageError("--stages: the model is not a pipeline");
}

void Regrid::check_experts() {
  bool are_whole = true;
  for (const Param& each : source_.params()) {
    const auto expert = parse_expert_name(each.name);
    if (!expert) continue;
    int64_t& count = experts_[expert->before];
    count = std::max(count, expert->number + 1);
    are_whole = are_whole && each.cut != nullptr && each.cut->is_whole();
  }
  const Value root = source_.files().model.front().archive->root();
  const bool are_listed = !root.find_or_none("num_experts").sequence_or_empty().empty();
  const std::vector<ParamGroup>& groups = source_.groups();
  const bool are_grouped = std::any_of(groups.begin(), groups.end(), [](const ParamGroup& group) {
    return group.ep_size > 1 || group.settings.value.find_or_none("moe").is_true();
  });
  if (experts_.empty() && !are_listed && !are_grouped && source_.facts().mesh.ep == 1) return;
  const Where where{.file = source_.tag_folder().string()};
  if (experts_.empty() || is_pipeline()) {
    throw UnsupportedError(where, std::string("has experts ") +
                                      (is_pipeline() ? "in a pipeline" : "of AutoEP") +
                                      ", whose tensor-parallel ranks and pipeline stages stay as "
                                      "they are")
        .with_hint("to-universal makes a checkpoint for another grid");
  }
  if (mesh_.tp == 1 || !are_whole) return;
  // moe/layer.py MoE._create_process_groups
  throw UnsupportedError(where,
                         "has experts that every tensor-parallel rank would have whole. DeepSpeed "
                         "spreads such experts over these ranks too, which is not written")
      .with_hint("--tp-rule REGEX=cat:0 or REGEX=cat:1 says how the ranks share an expert");
}

void Regrid::check_heads() {
  if (mesh_.tp == old_.tp) {
    if (kv_heads_) throw UsageError("--kv-heads: the tensor-parallel ranks stay as they are");
    return;
  }
  if (mesh_.tp > old_.tp && !kv_heads_ && !integer_in(args_, "num_attention_heads")) {
    notes_.push_back("nothing in the files tells how many heads attention has; if " +
                     counted(mesh_.tp, "tensor-parallel rank") +
                     " cannot share them evenly, the new run refuses the slices");
  }
  for (const std::string_view key : {"num_attention_heads", "num_key_value_heads"}) {
    const auto heads = integer_in(args_, key);
    if (!heads || *heads % mesh_.tp == 0) continue;
    throw UsageError(std::string(key) + " is " + std::to_string(*heads) + ": " +
                     counted(mesh_.tp, "tensor-parallel rank") +
                     " cannot share these heads evenly");
  }
}

// Megatron's and NeoX's.
void Regrid::note_random_states() {
  if (mesh_.tp <= old_.tp) return;
  const Value root = source_.files().model.front().archive->root();
  for (const std::string_view key : {"rng_state", "rng_tracker_states"}) {
    if (root.find_or_none(key).is_none()) continue;
    notes_.emplace_back(
        "further tensor-parallel ranks continue with the random states of rank 0, so dropout is "
        "the "
        "same there; the program's no-load-rng starts new ones");
    return;
  }
}

// Megatron: tokenizer.py _vocab_size_with_padding; NeoX alike.
void Regrid::choose_vocabulary(const GridOptions& options) {
  const Param* vocabulary = nullptr;
  old_padded_ = integer_in(args_, "padded_vocab_size");
  for (const Param& each : source_.params()) {
    if (is_vocabulary(each)) vocabulary = &each;
  }
  if (vocabulary == nullptr) {
    if (options.padded_vocab_size) {
      throw UsageError("--padded-vocab-size: nothing tells which parameter is a vocabulary");
    }
    return;
  }
  const int64_t rows = vocabulary->weight.shape()[0];
  const std::optional<int64_t> used = vocabulary->form.vocab_rows;
  if (options.padded_vocab_size) {
    padded_ = options.padded_vocab_size;
    if (*padded_ < used.value_or(1) || *padded_ % mesh_.tp != 0) {
      throw UsageError("--padded-vocab-size " + std::to_string(*padded_) + ": " +
                       counted(mesh_.tp, "tensor-parallel rank") + " cannot share the " +
                       counted(used.value_or(1), "row") + " of '" + vocabulary->name + "' so");
    }
    if (mesh_.tp == old_.tp && *padded_ == rows) padded_.reset();
    return;
  }
  if (mesh_.tp == old_.tp) return;
  const auto unit = integer_in(args_, "make_vocab_size_divisible_by");
  if (!unit || *unit < 1) {
    if (!used || *used == rows || mesh_.tp == 1) return;  // as any other parameter
    notes_.push_back("the vocabulary keeps its " + counted(rows, "row") +
                     "; if the new run pads it to others, " + std::string(kVocabHint));
    return;
  }
  const int64_t old_unit = *unit * old_.tp;
  const int64_t new_unit = *unit * mesh_.tp;
  // Without the number of rows that are used, it is one of those that the old padding is for.
  const int64_t least = used.value_or(rows - old_unit + 1);
  const int64_t most = used.value_or(rows);
  if (rounded_up(most, old_unit) != rows ||
      rounded_up(least, new_unit) != rounded_up(most, new_unit)) {
    throw UnsupportedError({.tensor = vocabulary->name},
                           "has " + counted(rows, "row") +
                               ", and nothing tells how many of them are padding for " +
                               counted(old_.tp, "tensor-parallel rank"))
        .with_hint(kVocabHint);
  }
  padded_ = rounded_up(most, new_unit);
}

bool Regrid::is_vocabulary(const Param& param) const {
  if (param.weight.shape().size() != 2) return false;
  if (param.form.vocab_rows) return true;
  if (param.weight.shape()[0] != old_padded_) return false;
  constexpr std::array<std::string_view, 3> kNames{"word_embeddings.weight", "final_linear.weight",
                                                   "lm_head.weight"};
  return std::any_of(kNames.begin(), kNames.end(),
                     [&](std::string_view name) { return param.name.ends_with(name); });
}

std::vector<RegridLayer> layers_with_files(const Checkpoint& source) {
  std::map<uint32_t, RegridLayer> layers;
  for (const CheckpointFile& file : source.files().modules) {
    const std::string file_name = file.path.filename().string();
    const auto name = parse_shard_name(file_name);
    if (!name || name->kind != ShardName::Kind::layer) continue;
    RegridLayer& layer = layers[name->layer];
    layer.index = name->layer;
    layer.files.resize(std::max<size_t>(layer.files.size(), name->mp_rank + size_t{1}));
    layer.files[name->mp_rank] = file.archive;
    layer.has_model_suffix = file_name.find("-model_") != file_name.rfind("-model_");
  }
  std::vector<std::string> names;
  for (const Param& each : source.params()) {
    if (is_trained(each)) names.push_back(each.name);
  }
  for (const Param& each : source.params()) {
    if (each.kind == ParamKind::buffer) names.push_back(each.name);
  }
  LayerFronts fronts(names);
  std::vector<RegridLayer> found;
  for (auto& [index, layer] : layers) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : layer.files.front()->root().as_dict().items) {
      if (key.is(Kind::string) && TorchArchive::is_tensor(value))
        keys.emplace_back(key.as_string());
    }
    const std::string front = fronts.front_for(index, keys);
    for (const std::string& key : keys) layer.names.emplace_back(key, front + key);
    found.push_back(std::move(layer));
  }
  return found;
}

void Regrid::find_layers(const GridOptions& options) {
  const Value module = source_.files().model.front().archive->root().find_or_none(keys::kModule);
  if (!is_universal()) {
    layers_ = layers_with_files(run_);
  } else if (module.is_none()) {
    take_lost_entries(options);
    layers_ = named_layers(options);
  }
  for (const RegridLayer& layer : layers_) {
    const std::string front = layer.names.empty() ? "" : tied_front(layer.names.front().second);
    if (!front.empty()) tied_layers_.emplace(front, layer.index);
  }
}

// Only the folders of parameters have the values of a pipeline's layers. DeepSpeed's converter
// gives none to what is not trained, and its loader leaves that as the engine has it.
void Regrid::take_lost_entries(const GridOptions& options) {
  if (options.held != nullptr) return;
  std::vector<std::string> taken;
  const auto take = [&](const std::string& name, const char* kind) {
    if (find(name) != nullptr) return;
    const Param* of_like = options.like == nullptr ? nullptr : options.like->find(name);
    if (of_like == nullptr) {
      throw UnsupportedError({.file = source_.tag_folder().string(), .tensor = name},
                             std::string("is a ") + kind +
                                 " of a pipeline, and in no file: universal checkpoints of "
                                 "DeepSpeed's converter lack it")
          .with_hint(
              "the to-universal of dsckpt writes it too, and --like CHECKPOINT takes it from "
              "a checkpoint of the new run");
    }
    lost_index_.emplace(name, lost_.size());
    Param& made = lost_.emplace_back(*of_like);
    made.states.clear();
    made.step = {};
    made.others = {};
    taken.push_back(name);
  };
  for (const CheckpointFile& file : source_.files().model) {
    const Value root = file.archive->root();
    for (const Value& name : root.find_or_none(keys::kBufferNames).sequence_or_empty()) {
      if (name.is(Kind::string)) take(std::string(name.as_string()), "buffer");
    }
    const Value frozen = root.find_or_none(keys::kFrozenParamShapes);
    if (!frozen.is_mapping()) continue;
    for (const auto& [name, shape] : frozen.as_dict().items) {
      if (name.is(Kind::string)) take(std::string(name.as_string()), "frozen parameter");
    }
  }
  if (taken.empty()) return;
  notes_.push_back(
      "buffers and frozen parameters that the universal checkpoint lacks have the "
      "values of " +
      options.like->tag_folder().string() + ": " + some_of(taken));
}

const Param* Regrid::find(const std::string& name) const {
  const auto lost = lost_index_.find(name);
  return lost == lost_index_.end() ? source_.find(name) : &lost_[lost->second];
}

std::vector<const Param*> Regrid::all_params() const {
  std::vector<const Param*> all;
  for (const Param& each : source_.params()) all.push_back(&each);
  for (const Param& each : lost_) all.push_back(&each);
  return all;
}

namespace {

// The names of the files, the order of what is in them, and layers without parameters, of `files`.
void take_files_of(const std::vector<RegridLayer>& files, std::vector<RegridLayer>& layers) {
  for (const RegridLayer& each : files) {
    const auto layer = std::find_if(layers.begin(), layers.end(), [&](const RegridLayer& other) {
      return other.index == each.index;
    });
    if (layer == layers.end()) {
      layers.push_back({each.index, {}, {}, each.has_model_suffix});
      continue;
    }
    layer->has_model_suffix = each.has_model_suffix;
    std::stable_sort(layer->names.begin(), layer->names.end(), [&](const auto& a, const auto& b) {
      return std::find(each.names.begin(), each.names.end(), a) <
             std::find(each.names.begin(), each.names.end(), b);
    });
  }
}

}  // namespace

// The layers by the names of their parameters; layers without any are known from a checkpoint with
// files alone.
std::vector<RegridLayer> Regrid::named_layers(const GridOptions& options) const {
  std::map<uint32_t, RegridLayer> by_number;
  std::map<std::string, RegridLayer> tied;  // by the front of the names
  for (const Param* param : all_params()) {
    const Param& each = *param;
    const std::string front = tied_front(each.name);
    const auto number = layer_number(each.name);
    if (number) {
      by_number[*number].names.emplace_back(each.name.substr(each.name.find('.') + 1), each.name);
    } else if (!front.empty()) {
      tied[front].names.emplace_back(each.name.substr(front.size()), each.name);
    } else {
      throw UnsupportedError({.file = source_.tag_folder().string(), .tensor = each.name},
                             "is of a pipeline, but of none of its layers");
    }
  }
  std::vector<RegridLayer> layers;
  for (auto& [number, layer] : by_number) {
    layer.index = number;
    layers.push_back(std::move(layer));
  }
  const std::vector<RegridLayer> of_like =
      options.like == nullptr ? std::vector<RegridLayer>() : layers_with_files(options.like->run());
  std::vector<RegridLayer> of_tied;
  for (auto& [front, layer] : tied) {
    layer.index = number_of_tied(front, layers, of_like, options);
    of_tied.push_back(std::move(layer));
  }
  layers.insert(layers.end(), of_tied.begin(), of_tied.end());
  for (RegridLayer& layer : layers) layer.has_model_suffix = old_.tp > 1;
  take_files_of(of_like, layers);
  std::sort(layers.begin(), layers.end(),
            [](const RegridLayer& a, const RegridLayer& b) { return a.index < b.index; });
  for (size_t i = 1; i < layers.size(); ++i) {
    if (layers[i].index != layers[i - 1].index) continue;
    throw UnsupportedError(
        {.file = source_.tag_folder().string()},
        "has tied modules, and nothing tells which is layer " + std::to_string(layers[i].index))
        .with_hint(kLayersHint);
  }
  return layers;
}

// A number that no layer with parameters of its own has, in the first stage with the tied module.
uint32_t Regrid::number_of_tied(const std::string& front, const std::vector<RegridLayer>& layers,
                                const std::vector<RegridLayer>& of_like,
                                const GridOptions& options) const {
  for (const RegridLayer& each : of_like) {
    if (!each.names.empty() && tied_front(each.names.front().second) == front) return each.index;
  }
  std::optional<uint32_t> stage_of_it;
  std::set<uint64_t> taken;
  for (const RegridLayer& layer : layers) taken.insert(layer.index);
  uint64_t begin = 0;
  uint64_t end = std::min(taken.empty() ? 1 : *taken.rbegin() + 2, uint64_t{1} << 32);
  for (uint32_t stage = 0; stage < old_.pp; ++stage) {
    const bool is_past = stage_of_it.has_value();
    const std::vector<std::string>& names = names_in(stage);
    for (const std::string& name : names) {
      if (!is_past && tied_front(name) == front) stage_of_it = stage;
    }
    for (const std::string& name : names) {
      const auto number = layer_number(name);
      if (!number) continue;
      if (!stage_of_it) begin = std::max(begin, uint64_t{*number} + 1);
      if (is_past) end = std::min(end, uint64_t{*number});
    }
  }
  std::vector<uint32_t> free;
  std::string listed_numbers;
  for (uint64_t number = begin; number < end && free.size() < kMostListed; ++number) {
    if (taken.contains(number)) continue;
    free.push_back(static_cast<uint32_t>(number));
    listed_numbers += (listed_numbers.empty() ? "" : " or ") + std::to_string(number);
  }
  if (free.size() == 1 || (options.held != nullptr && !free.empty())) return free.front();
  throw UnsupportedError(
      {.file = source_.tag_folder().string(), .tensor = front.substr(0, front.size() - 1)},
      free.empty() ? "is tied, and its layer has no number that is free"
                   : "is tied, and nothing tells whether it is layer " + listed_numbers +
                         ", as the name of its file has to say")
      .with_hint(kLayersHint);
}

// At stage 0 they are the parameters themselves, at stage 3 placeholders. Those of a pipeline are
// in the files of layers.
void Regrid::find_modules() {
  const int stage = run_.facts().zero_stage;
  if (stage == 0 || stage == 3 || is_pipeline() || source_.facts().has_given_weights()) return;
  if (is_universal()) return;  // DeepSpeed's loader makes them of the masters
  for (uint32_t tp_rank = 0; tp_rank < old_.tp; ++tp_rank) {
    models_.push_back(&model_of(tp_rank));
    modules_.emplace_back(models_.back()->root().find_or_none(keys::kModule));
  }
}

// A tied module is on the stage of its first layer, whose number its file has, and where it is used
// again. Only the first place of the latter is told by the stages that have it.
void Regrid::place_tied() {
  for (uint32_t stage = 0; stage < old_.pp; ++stage) {
    for (const std::string& name : names_in(stage)) {
      const std::string front = tied_front(name);
      if (front.empty()) continue;
      std::vector<uint32_t>& stages = tied_[front];
      if (!is_listed(stages, stage)) stages.push_back(stage);
    }
  }
  for (const auto& [front, stages] : tied_) {
    const bool at_ends = stages.size() == 2 && stages.back() == old_.pp - 1;
    if (at_ends || old_.pp == 1 || mesh_.pp == old_.pp || mesh_.pp == 1) continue;
    throw UnsupportedError({.file = source_.tag_folder().string(), .tensor = front},
                           "is tied within the pipeline, and nothing tells the layer that uses it "
                           "again: it is not given to other stages");
  }
  if (old_.pp == 1 && mesh_.pp > 1 && !tied_.empty()) {
    notes_.emplace_back("tied layers are taken to be used again by the last stage");
  }
}

std::vector<StageLayer> Regrid::stage_layers() const {
  if (layers_.back().index >= kMostLayers) {
    throw UnsupportedError({.file = source_.tag_folder().string()},
                           "has a layer " + std::to_string(layers_.back().index) +
                               ": a pipeline of so many layers gets no other stages");
  }
  std::vector<StageLayer> layers(layers_.back().index + size_t{1});
  std::map<uint32_t, uint32_t> stage_of;
  for (uint32_t stage = 0; stage < old_.pp; ++stage) {
    for (const std::string& name : names_in(stage)) {
      if (const auto number = layer_number(name)) stage_of.emplace(*number, stage);
    }
  }
  std::map<std::set<std::string>, std::vector<uint32_t>> alike;
  uint64_t tied = 0;
  for (const RegridLayer& layer : layers_) {
    StageLayer& made = layers[layer.index];
    std::set<std::string> keys;
    for (const auto& [key, name] : layer.names) {
      keys.insert(key);
      const Param* found = source_.find(name);
      if (found == nullptr || found->kind == ParamKind::buffer) continue;
      const Param on_rank = keeps_slices() ? present_slice(name, 0) : slice(*found, 0);
      made.numel += static_cast<uint64_t>(on_rank.weight.numel());
    }
    const bool is_tied = layer.names.empty() ? false : !tied_front(layer.names[0].second).empty();
    if (is_tied) {
      tied += made.numel;
    } else {
      alike[keys].push_back(layer.index);
    }
    const auto found = stage_of.find(layer.index);
    if (found != stage_of.end()) made.stage = found->second;
  }
  const auto blocks = integer_in(args_, "num_layers");
  const std::vector<uint32_t>* chosen = nullptr;
  for (const auto& [keys, numbers] : alike) {
    const bool is_right = blocks && static_cast<int64_t>(numbers.size()) == *blocks;
    if (chosen == nullptr || numbers.size() > chosen->size() || is_right) chosen = &numbers;
    if (is_right) break;
  }
  if (chosen != nullptr) {
    for (const uint32_t number : *chosen) layers[number].is_block = true;
  }
  // The last layer, which has no file of its own.
  if (tied > 0) layers.push_back({.numel = tied});
  return layers;
}

void Regrid::choose_stages(const GridOptions& options) {
  const std::vector<StageLayer> layers = stage_layers();
  if (mesh_.pp == old_.pp && options.stages.empty()) {
    starts_.assign(mesh_.pp, static_cast<uint32_t>(layers.size()) - 1);
    for (size_t i = layers.size(); i-- > 0;) {
      if (layers[i].stage) starts_[*layers[i].stage] = static_cast<uint32_t>(i);
    }
    starts_[0] = 0;
    for (const auto& [front, stages] : tied_) new_tied_[front] = stages;
  } else {
    const bool is_programs = integer_in(args_, "num_layers").has_value();
    starts_ = mesh_.pp == 1
                  ? StageStarts{0}
                  : stage_starts(layers, mesh_.pp, options.stages, is_programs ? "blocks" : "");
    for (const auto& [front, stages] : tied_) {
      const auto first = tied_layers_.find(front);
      uint32_t stage = 0;
      while (first != tied_layers_.end() && stage + 1 < mesh_.pp &&
             starts_[stage + 1] <= first->second) {
        ++stage;
      }
      new_tied_[front] = {stage};
      if (stage != mesh_.pp - 1) new_tied_[front].push_back(mesh_.pp - 1);
    }
  }
  for (uint32_t stage = 0; stage < mesh_.pp; ++stage) {
    const std::vector<ParamGroup> groups = groups_of(stage);
    if (std::any_of(groups.begin(), groups.end(),
                    [](const ParamGroup& group) { return !group.params.empty(); })) {
      continue;
    }
    throw UsageError("stage " + std::to_string(stage) + " of " + counted(mesh_.pp, "stage") +
                     " would have no layers with trained parameters");
  }
}

bool Regrid::is_in(const std::string& name, uint32_t stage) const {
  if (!is_pipeline()) return true;
  if (const auto number = layer_number(name)) {
    return *number >= starts_[stage] &&
           (stage + 1 == starts_.size() || *number < starts_[stage + 1]);
  }
  const auto tied = new_tied_.find(tied_front(name));
  if (tied != new_tied_.end() && held_) return held_->contains(name);
  if (tied != new_tied_.end()) return is_listed(tied->second, stage);
  throw UnsupportedError({.file = source_.tag_folder().string(), .tensor = name},
                         "is of a pipeline, but of none of its layers");
}

bool Regrid::is_in_earlier(const std::string& name, uint32_t stage) const {
  for (uint32_t earlier = 0; earlier < stage; ++earlier) {
    if (is_in(name, earlier)) return true;
  }
  return false;
}

// A stage's optimizer has its parameters in the order of torch's modules: tied ones first. Experts
// have the names that the first expert-parallel rank gives its own.
std::vector<ParamGroup> Regrid::groups_of(uint32_t stage) const {
  std::vector<ParamGroup> groups = source_.groups();
  for (ParamGroup& group : groups) {
    std::erase_if(group.params, [&](const std::string& name) {
      return !is_in(name, stage) || !is_on_first_rank(name, group.ep_size);
    });
    if (!is_pipeline()) continue;
    std::stable_sort(group.params.begin(), group.params.end(),
                     [](const std::string& a, const std::string& b) {
                       return layer_number(a) < layer_number(b);
                     });
  }
  return groups;
}

bool Regrid::is_on_first_rank(const std::string& name, uint32_t ep_size) const {
  const auto expert = ep_size > 1 ? parse_expert_name(name) : std::nullopt;
  return !expert || expert->number < experts_.at(expert->before) / ep_size;
}

uint32_t Regrid::base_stage(uint32_t stage) const {
  return stage == mesh_.pp - 1 ? old_.pp - 1 : std::min(stage, old_.pp - 1);
}

const Checkpoint& Regrid::base(uint32_t mp_rank) const {
  if (!run_.facts().model_parallel) return run_;
  std::unique_ptr<Checkpoint>& made = bases_[mp_rank];
  if (made == nullptr) made = std::make_unique<Checkpoint>(run_.world(mp_rank));
  return *made;
}

// The checkpoint's stages have them. No slice of a universal one has to be there for that.
const std::vector<std::string>& Regrid::names_in(uint32_t stage) const {
  const auto known = names_.find(stage);
  if (known != names_.end()) return known->second;
  std::vector<std::string> names;
  if (!is_universal()) {
    for (const Param& each : base(stage * old_.tp).params()) names.push_back(each.name);
    return names_.emplace(stage, std::move(names)).first->second;
  }
  const Value root = model_of(stage * old_.tp).root();
  const auto add_keys = [&](const Value& shapes) {
    for (const auto& item : shapes.as_dict().items) names.emplace_back(item.first.as_string());
  };
  for (const Value& group : root.find_or_none(keys::kParamShapes).sequence_or_empty()) {
    add_keys(group);
  }
  const Value frozen = root.find_or_none(keys::kFrozenParamShapes);
  if (frozen.is_mapping()) add_keys(frozen);
  for (const Value& name : root.find_or_none(keys::kBufferNames).sequence_or_empty()) {
    names.emplace_back(name.as_string());
  }
  return names_.emplace(stage, std::move(names)).first->second;
}

CheckpointDraft Regrid::draft_of_base(uint32_t mp_rank) const {
  return run_.facts().model_parallel ? run_.draft_of_world(mp_rank) : run_.draft();
}

const TorchArchive& Regrid::model_of(uint32_t mp_rank) const {
  return *draft_of_base(mp_rank).files.model.front().archive;
}

const Param& Regrid::param(const std::string& name) const {
  const Param* found = find(name);
  if (found == nullptr) {
    throw UnsupportedError({.file = source_.tag_folder().string(), .tensor = name},
                           "has values in no file");
  }
  return *found;
}

// The cut with the unit that AutoTP does not divide, if the present slices do not tell it.
std::shared_ptr<const TpCut> Regrid::told_cut(const Param& param) const {
  if (!kv_heads_ || param.cut == nullptr || param.cut->parts().size() != 1) return param.cut;
  TpPart part = param.cut->parts().front();
  if (part.on_every_rank || param.cut->is_uneven()) return param.cut;
  const auto [unit, other] = autotp_units(param.name, part.rows(), *kv_heads_);
  part.unit = unit;
  const std::vector<int64_t> shares = part.shares_of(mesh_.tp);
  part.unit = other;
  if (part.shares_of(mesh_.tp) != shares) {
    throw UsageError("AutoTP cuts it by heads or by rows, and nothing in the files tells which")
        .with_hint("to-universal makes a checkpoint for another grid");
  }
  return std::make_shared<const TpCut>(TpCut(param.cut->dim(), param.cut->dims(), {part}));
}

std::shared_ptr<const TpCut> Regrid::cut_for(const Param& param) const {
  if (param.cut == nullptr && mesh_.tp == 1) {
    return std::make_shared<const TpCut>(TpCut::whole());
  }
  if (param.cut == nullptr) {
    throw UnsupportedError(
        {.file = source_.tag_folder().string(), .tensor = param.name},
        "has no rule that says how " + counted(mesh_.tp, "tensor-parallel rank") + " share it")
        .with_hint("--tp-rule REGEX=cat:0, REGEX=cat:1 or REGEX=replicated gives one");
  }
  return in_context({.file = source_.tag_folder().string(), .tensor = param.name}, [&] {
    if (padded_ && is_vocabulary(param) && !param.cut->is_whole()) {
      return std::make_shared<const TpCut>(param.cut->with_rows(*padded_, mesh_.tp));
    }
    return std::make_shared<const TpCut>(told_cut(param)->for_ranks(mesh_.tp));
  });
}

TensorSource Regrid::slice_of(const Param& param, const TensorSource& value, const TpCut& cut,
                              uint32_t tp_rank) const {
  const bool resized = padded_ && is_vocabulary(param) && !cut.is_whole();
  if (!resized || value.shape()[0] == *padded_) return cut.slice(value, tp_rank);
  const int64_t used =
      std::min({param.form.vocab_rows.value_or(*padded_), value.shape()[0], *padded_});
  Shape added = value.shape();
  added[0] = *padded_ - used;
  return cut.slice(
      TensorSource::cat(0, {value.narrow(0, 0, used), TensorSource::zeros(value.dtype(), added)}),
      tp_rank);
}

Param Regrid::slice(const Param& param, uint32_t tp_rank) const {
  const std::shared_ptr<const TpCut> cut = cut_for(param);
  Param made = param;
  made.cut = told_cut(param);
  made.weight = slice_of(param, param.weight, *cut, tp_rank);
  for (ParamState& state : made.states) state.value = slice_of(param, state.value, *cut, tp_rank);
  return made;
}

TensorSource Regrid::slice_of_copies(const Param& param, const std::vector<TensorSource>& copies,
                                     uint32_t tp_rank) const {
  const std::shared_ptr<const TpCut> cut = cut_for(param);
  const bool joins = old_.tp == 1 || (param.cut != nullptr && param.cut->joins());
  if (!joins || param.given || copies.size() != old_.tp) {
    return slice_of(param, param.weight, *cut, tp_rank).to(copies.front().dtype());
  }
  if (old_.tp == 1 || param.cut->is_whole()) {
    const std::string what = "copies of '" + param.name + "' in the tensor-parallel ranks' models";
    return slice_of(param, TensorSource::same(copies, what), *cut, tp_rank);
  }
  const TpCut old = param.cut->for_ranks(old_.tp);
  return slice_of(param, old.join(copies, param.weight.shape()), *cut, tp_rank);
}

// Empty if a rank has none.
std::vector<TensorSource> Regrid::copies_in_modules(const Param& param) const {
  std::vector<TensorSource> copies;
  if (!is_trained(param)) return copies;
  for (uint32_t tp_rank = 0; tp_rank < modules_.size(); ++tp_rank) {
    const Value saved = modules_[tp_rank].find(param.name);
    if (!TorchArchive::is_tensor(saved)) return {};
    copies.push_back(models_[tp_rank]->tensor(saved));
  }
  return copies;
}

// The first stage's of several copies.
const Param& Regrid::present_slice(const std::string& name, uint32_t tp_rank) const {
  for (uint32_t stage = 0; stage < old_.pp; ++stage) {
    if (const Param* found = base(stage * old_.tp + tp_rank).find(name)) return *found;
  }
  return param(name);
}

Checkpoint Regrid::world(uint32_t mp_rank) const {
  const uint32_t stage = mp_rank / mesh_.tp;
  const uint32_t tp_rank = mp_rank % mesh_.tp;
  std::vector<Param> params;
  const bool keeps_buffers = is_universal() && !is_pipeline() && mesh_.tp == old_.tp;
  const TorchArchive* own_file = keeps_buffers ? &model_of(tp_rank) : nullptr;
  const ModuleEntries own(keeps_buffers ? own_file->root().find_or_none(keys::kModule) : Value());
  for (const Param* whole : all_params()) {
    const Param& each = *whole;
    if (!is_in(each.name, stage)) continue;
    Param& made = params.emplace_back(keeps_slices() ? present_slice(each.name, tp_rank)
                                                     : slice(each, tp_rank));
    // Ranks' copies may differ.
    if (const Value saved = own.find(each.name);
        each.kind == ParamKind::buffer && !each.given && TorchArchive::is_tensor(saved)) {
      const TensorSource copy = own_file->tensor(saved);
      if (copy.shape() == made.weight.shape()) made.weight = copy;
    }
    made.given = true;
    if (is_in_earlier(each.name, stage)) compare_no_copies(made);
    const std::vector<TensorSource> copies = copies_in_modules(each);
    if (copies.empty()) continue;
    made.in_module = keeps_slices() ? copies[tp_rank] : slice_of_copies(each, copies, tp_rank);
  }
  if (keeps_slices()) give_values(params, source_, tp_rank);
  CheckpointDraft draft = draft_of_base(base_stage(stage) * old_.tp + base_tp(tp_rank));
  tell_values(draft.facts, source_.facts());
  draft.facts.regridded = {.mesh = mesh_, .mp_rank = mp_rank, .padded_vocab_size = padded_};
  draft.facts.model_parallel = true;
  draft.facts.mesh.pp = mesh_.pp;
  draft.facts.mesh.tp = mesh_.tp;
  draft.params = std::move(params);
  draft.groups = groups_of(stage);
  return Checkpoint(std::move(draft));
}

std::vector<std::string> Regrid::lines() const {
  std::vector<std::string> lines;
  for (size_t stage = 0; stage < starts_.size(); ++stage) {
    std::string line =
        "stage " + std::to_string(stage) + ": from layer " + std::to_string(starts_[stage]);
    if (stage + 1 < starts_.size()) line += " to " + std::to_string(starts_[stage + 1] - 1);
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace dsckpt
