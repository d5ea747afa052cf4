#include "reshard/engine_part.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/text.h"
#include "checkpoint/layout.h"
#include "checkpoint/pipeline_layers.h"
#include "checkpoint/shard.h"
#include "checkpoint/universal_info.h"
#include "dsckpt/error.h"
#include "format/torch_archive.h"
#include "pickle/pickle.h"

namespace dsckpt {
namespace {

// Archives of values are told apart by their places in a file, behind its end.
constexpr uint64_t kRulesPlace = ~uint64_t{0} - 4;

class EnginePart {
 public:
  EnginePart(const Checkpoint& whole, const EngineFacts& engine, const std::vector<TpRule>& rules,
             const InputFiles& inputs)
      : whole_(whole), engine_(engine), info_(rules_of(engine, rules, inputs)) {
    for (const EngineTensor& tensor : engine.tensors) {
      if (tensor.ep > 0) {
        throw UnsupportedError({.file = whole.tag_folder().string()},
                               "is of another framework: it is not loaded into an engine with "
                               "experts")
            .with_hint("reshard, or to-universal, makes a checkpoint that DeepSpeed itself loads");
      }
      tensors_.emplace(tensor.name, &tensor);
    }
  }

  CheckpointDraft draft() {
    CheckpointDraft draft = whole_.draft();
    KeyedSet<std::string> names;
    const LayersOfRank layers(engine_);
    for (const Param& param : whole_.params()) {
      const auto found = tensors_.find(param.name);
      if (found == tensors_.end() && !layers.may_have(param.name)) continue;
      names.insert(param.name);
      draft.params.push_back(found == tensors_.end() ? param : part(param, *found->second));
    }
    for (ParamGroup& group : draft.groups) {
      std::erase_if(group.params, [&](const std::string& name) { return !names.contains(name); });
    }
    Mesh& mesh = draft.facts.mesh;
    mesh.pp = stages_of(engine_);
    mesh.tp = engine_.tp;
    draft.facts.model_parallel = true;
    draft.facts.regridded = {.mesh = mesh, .mp_rank = engine_.mp_rank};
    return draft;
  }

 private:
  static UniversalInfo rules_of(const EngineFacts& engine, const std::vector<TpRule>& rules,
                                const InputFiles& inputs) {
    if (engine.universal_info.empty()) return UniversalInfo(rules);
    pickle::Document document =
        pickle::Document::parse(std::as_bytes(std::span(engine.universal_info)));
    const Shard shard{.name = {},
                      .path = {},
                      .display = "the engine",
                      .archive = TorchArchive::of_values(inputs, {FileId{0}, kRulesPlace, 0},
                                                         std::move(document))};
    return UniversalInfo::read(Fields(shard, shard.archive.root(), "universal_checkpoint_info"),
                               rules);
  }

  Param part(const Param& param, const EngineTensor& tensor) {
    if (engine_.tp == 1) return param;
    return in_context({.file = whole_.tag_folder().string(), .tensor = param.name}, [&] {
      Param made = param;
      const auto [cut, rows] = cut_for(param, tensor);
      const auto slice = [&, &by = cut, &padded = rows](const TensorSource& value) {
        return by.slice(filled_up(value, padded), engine_.mp_rank % engine_.tp);
      };
      made.weight = slice(param.weight);
      for (ParamState& state : made.states) state.value = slice(state.value);
      made.form = {};
      made.cut = nullptr;
      if (made.weight.shape() == tensor.shape) return made;
      throw InconsistentError({}, "would be " + to_text(made.weight.shape()) +
                                      " on tensor-parallel rank " +
                                      std::to_string(engine_.mp_rank % engine_.tp) +
                                      ", which has " + to_text(tensor.shape));
    });
  }

  // Also the rows of a vocabulary with its padding.
  std::pair<TpCut, std::optional<int64_t>> cut_for(const Param& param, const EngineTensor& tensor) {
    const Shape& shape = param.weight.shape();
    // Rules are of parameters, and leave most buffers to the default for these.
    if (tensor.kind == ParamKind::buffer && !info_.has_rule(param.name) && shape == tensor.shape) {
      return {TpCut::whole(), std::nullopt};
    }
    if (const auto shapes = info_.told_slices(param.name, shape)) {
      if (shapes->size() != engine_.tp) {
        throw InconsistentError({}, "has slices by the engine's rules for " +
                                        counted(shapes->size(), "tensor-parallel rank") + ", not " +
                                        std::to_string(engine_.tp));
      }
      return checked(info_.rule_for(param.name, *shapes), shape);
    }
    UniversalInfo::Rule rule = info_.rule_for(param.name, {shape});
    const bool is_vocabulary = rule.form().vocab_rows && !shape.empty() && !tensor.shape.empty();
    if (!is_vocabulary) return checked(rule, shape);
    Shape padded = shape;
    padded[0] = std::max(shape[0], tensor.shape[0] * int64_t{engine_.tp});
    return checked(info_.rule_for(param.name, {padded}), shape);
  }

  std::pair<TpCut, std::optional<int64_t>> checked(const UniversalInfo::Rule& rule,
                                                   const Shape& shape) const {
    if (rule.cut() == nullptr) {
      throw UnsupportedError({}, "has no rule that says how " +
                                     counted(engine_.tp, "tensor-parallel rank") + " share it")
          .with_hint(
              "--tp-rule REGEX=cat:0, REGEX=cat:1 or REGEX=replicated gives one, and so "
              "does tp_rules of dsckpt.load_checkpoint");
    }
    std::optional<int64_t> rows;
    Shape whole = rule.shape();
    if (rule.form().vocab_rows && !whole.empty() && !shape.empty() && whole[0] > shape[0]) {
      rows = std::exchange(whole[0], shape[0]);
    }
    if (whole != shape) {
      throw InconsistentError({}, "has shape " + to_text(shape) + ", the engine's ranks have " +
                                      to_text(rule.shape()) + " together");
    }
    return {rule.cut()->for_ranks(engine_.tp), rows};
  }

  static TensorSource filled_up(const TensorSource& value, const std::optional<int64_t>& rows) {
    if (!rows) return value;
    Shape padding = value.shape();
    padding[0] = *rows - padding[0];
    return TensorSource::cat(0, {value, TensorSource::zeros(value.dtype(), padding)});
  }

  const Checkpoint& whole_;
  const EngineFacts& engine_;
  UniversalInfo info_;
  KeyedMap<std::string_view, const EngineTensor*> tensors_;
};

}  // namespace

uint32_t stages_of(const EngineFacts& engine) {
  return static_cast<uint32_t>(std::max(engine.stages.size(), size_t{1}));
}

bool is_split(const EngineFacts& engine) {
  return !engine.stages.empty() || engine.tp > 1 ||
         std::any_of(engine.tensors.begin(), engine.tensors.end(),
                     [](const EngineTensor& tensor) { return tensor.ep > 0; });
}

LayersOfRank::LayersOfRank(const EngineFacts& engine) : engine_(engine) {
  for (const EngineTensor& tensor : engine.tensors) fronts_.insert(layer_front(tensor.name));
}

bool LayersOfRank::may_have(const std::string& name) const {
  const std::string_view front = layer_front(name);
  if (engine_.stages.empty() || front.empty() || fronts_.contains(front)) return true;
  const auto number = layer_number(name);
  if (!number) return false;
  const auto next = std::upper_bound(engine_.stages.begin(), engine_.stages.end(), *number);
  return static_cast<uint32_t>(next - engine_.stages.begin()) == engine_.mp_rank / engine_.tp + 1;
}

Checkpoint part_of(std::shared_ptr<const Checkpoint> whole, const EngineFacts& engine,
                   const std::vector<TpRule>& rules, const InputFiles& inputs) {
  CheckpointDraft draft = EnginePart(*whole, engine, rules, inputs).draft();
  draft.values = std::move(whole);
  return Checkpoint(std::move(draft));
}

}  // namespace dsckpt
