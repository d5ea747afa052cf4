// How the groups of a target become tensors, and whether they can.
#include <algorithm>
#include <utility>

#include "base/keyed_hash.h"
#include "checkpoint/experts.h"
#include "checkpoint/module_entries.h"
#include "checkpoint/shard.h"
#include "deepspeed/keys.h"
#include "dsckpt/error.h"
#include "format/meta_tensor.h"
#include "reshard/layout.h"

namespace dsckpt {
using pickle::Kind;
using pickle::Value;

LayoutSource::LayoutSource(const Checkpoint& checkpoint)
    : params(checkpoint.params()),
      folder(checkpoint.tag_folder().string()),
      file(checkpoint.files().model.front().path.string()),
      lists_all_frozen(checkpoint.facts().model_parallel),
      has_whole_states(checkpoint.facts().zero_stage == 0) {
  const Value root = checkpoint.files().model.front().archive->root();
  leaves_out_frozen = checkpoint.facts().zero_stage >= 2 &&
                      root.find_or_none(keys::kFrozenParamShapes).is_none() &&
                      root.find(keys::kFrozenParamShapes);
  // Parameters with other names are not in the files by these.
  if (checkpoint.changed_from() != nullptr) return;
  module = root.find_or_none(keys::kModule);
  frozen_param_shapes = root.find_or_none(keys::kFrozenParamShapes);
}

class ReshardLayout::Builder {
 public:
  Builder(const LayoutSource& source, ReshardLayout& layout)
      : source_(source),
        target_(layout.target_),
        params_(source.params),
        experts_(source.params, source.folder),
        layout_(layout) {}

  void build() {
    for (const RunGroup& group : target_.groups) {
      layout_.groups_.push_back(made_group(group));
      check_group(layout_.groups_.back());
    }
    check_module();
    for (size_t g = 0; g < layout_.groups_.size(); ++g) add_runs(g);
    find_frozen();
  }

 private:
  Group made_group(const RunGroup& group) {
    Group made{.settings = group.settings.value,
               .experts = group.has_experts(),
               .mesh = {target_.dp, group.ep_size, target_.data_before_experts},
               .parts = {}};
    for (uint32_t ep_rank = 0; ep_rank < group.ep_size; ++ep_rank) {
      made.parts.push_back(in_order(params_of(group, ep_rank), made.mesh.edp()));
    }
    if (target_.is_zero12()) {
      const uint64_t unit = is_before(target_.release, kTwoElementsARank) ? 1 : 2;
      made.flat = flat_layout(numels_of(made.params()), made.mesh.edp(), alignment(), unit);
    }
    return made;
  }

  Params params_of(const RunGroup& group, uint32_t ep_rank) {
    Params params;
    for (const std::string& name : group.params) {
      if (experts_.is_shared(group, name)) {
        params.push_back(params_.find(name));
        continue;
      }
      layout_.local_.push_back(experts_.local(name, ep_rank, group.ep_size));
      params.push_back(&layout_.local_.back());
    }
    return params;
  }

  Params in_order(const Params& params, uint32_t ranks) const {
    if (!target_.round_robin) return params;
    Params ordered;
    for (const size_t i : round_robin_order(params.size(), ranks)) ordered.push_back(params[i]);
    return ordered;
  }

  static std::vector<uint64_t> numels_of(const Params& params) {
    std::vector<uint64_t> numels;
    for (const Param* param : params) numels.push_back(numel_of(*param));
    return numels;
  }

  // Elements: 16 bytes of the parameters' type.
  uint64_t alignment() const {
    if (!target_.parameter_alignment) return 1;
    return 16 / size_of(target_.param_dtype.value_or(target_.saved_param_dtype));
  }

  void add_runs(size_t g) {
    size_t begin = 0;
    for (const size_t end : run_ends(layout_.groups_[g])) {
      const Run run{.group = g, .begin = begin, .end = end};
      check_run(run);
      layout_.runs_.push_back(run);
      begin = end;
    }
  }

  std::vector<size_t> run_ends(const Group& group) const {
    const Params& params = group.params();
    std::vector<size_t> ends;
    if (params.empty()) return ends;
    if (layout_.is_single()) {
      for (size_t i = 0; i < params.size(); ++i) ends.push_back(i + 1);
      return ends;
    }
    if (target_.stage != 3) return {params.size()};
    return sub_group_ends(numels_of(params), group.mesh.edp(), target_.sub_group_size);
  }

  // The parameters that the optimizer lacks, or has and does not train any more;
  // frozen_param_shapes lists the latter.
  void find_frozen() {
    if (source_.leaves_out_frozen) return;
    KeyedSet<std::string_view> names;
    const auto add = [&](const Param* param) {
      if (param == nullptr || param->kind == ParamKind::buffer || !param->alias_of.empty()) return;
      if (names.insert(param->name).second) layout_.frozen_.push_back(param);
    };
    const Value& saved = source_.frozen_param_shapes;
    if (saved.is_mapping()) {
      for (const auto& entry : saved.as_dict().items) {
        if (!entry.first.is(Kind::string)) continue;
        const Param* param = params_.find(entry.first.as_string());
        if (param == nullptr) {
          throw UnsupportedError(
              {.file = source_.file, .tensor = std::string(entry.first.as_string())},
              "is a frozen parameter of the model whose values are in no file");
        }
        add(param);
      }
    }
    // AutoEP's router has an alias in `module` that neither shared_params nor this list knows.
    if (source_.lists_all_frozen && saved.is_mapping()) return;
    const KeyedSet<std::string_view> members = trained_names();
    for (const Param& param : source_.params) {
      if (!members.contains(param.name)) add(&param);
    }
  }

  // By their names in the checkpoint.
  KeyedSet<std::string_view> trained_names() const {
    KeyedSet<std::string_view> names;
    for (const RunGroup& group : target_.groups) {
      for (const std::string_view name : experts_.members_of(group)) names.insert(name);
    }
    return names;
  }

  // Strict loading wants every parameter of the model. A pipeline's layers and experts have files
  // of their own.
  void check_module() const {
    if (source_.module.is_none()) return;
    const ModuleEntries module(source_.module);
    for (const Group& group : layout_.groups_) {
      for (const Param* param : group.params()) {
        if (group.experts && is_expert(*param)) continue;
        const Value entry = module.find(param->name);
        if (TorchArchive::is_tensor(entry) || is_meta_tensor(entry)) continue;
        throw InconsistentError(
            {.file = source_.file, .member = std::string(keys::kModule), .tensor = param->name},
            "is missing or no tensor");
      }
    }
  }

  Where where_of(const Param& param) const {
    return {.file = source_.folder, .tensor = param.name};
  }

  void check_group(const Group& group) const {
    for (const Param* param : group.params()) {
      if (param->weight.dtype() != group.params().front()->weight.dtype()) {
        throw UnsupportedError(where_of(*param), "has a master of a different type than '" +
                                                     group.params().front()->name +
                                                     "' of its group");
      }
      // Adafactor keeps different states for a matrix than for the vectors that ZeRO gives it.
      if (!layout_.is_single() || source_.has_whole_states) continue;
      for (const ParamState& state : param->states) {
        if (state.key != "variance" || param->weight.shape().size() < 2) continue;
        throw UnsupportedError(where_of(*param),
                               "has Adafactor's state 'variance' of a vector; without ZeRO it "
                               "keeps different states of a matrix");
      }
    }
  }

  // The sources of one tensor of the optimizer must have the same states. Values that the optimizer
  // keeps once for it must be the same, too.
  void check_run(const Run& run) const {
    const Param* first = layout_.stepped(run, 0);
    for (const Params& part : layout_.groups_[run.group].parts) {
      for (size_t i = run.begin; i < run.end; ++i) {
        if (!part[i]->fresh) check_same_states(*part[i], *first);
      }
    }
  }

  void check_same_states(const Param& param, const Param& first) const {
    const auto differ = [&](const std::string& what) {
      throw UnsupportedError(
          where_of(param),
          what + " than '" + first.name + "', in whose group the new run's optimizer has it");
    };
    bool same = param.states.size() == first.states.size();
    for (size_t i = 0; same && i < first.states.size(); ++i) {
      same = param.states[i].key == first.states[i].key &&
             param.states[i].value.dtype() == first.states[i].value.dtype();
    }
    if (!same) differ("has different optimizer states");
    if (!same_value(param.step, first.step)) differ("was stepped a different number of times");
    for (const WholeState& other : param.others) {
      if (other.same_on_all_ranks || is_computed_anew(other)) continue;
      throw UnsupportedError(where_of(param),
                             "has an optimizer state '" + other.key +
                                 "' that is neither one value an element nor the same number on "
                                 "all ranks; it cannot be cut anew");
    }
    bool equal = param.others.size() == first.others.size();
    for (size_t i = 0; equal && i < first.others.size(); ++i) {
      equal = param.others[i].key == first.others[i].key &&
              (is_computed_anew(first.others[i]) ||
               same_value(param.others[i].value, first.others[i].value));
    }
    if (!equal) differ("has different values in its optimizer states");
  }

  const LayoutSource& source_;
  const ReshardTarget& target_;
  ParamIndex params_;
  ExpertNames experts_;
  ReshardLayout& layout_;
};

ReshardLayout::ReshardLayout(const LayoutSource& source, const ReshardTarget& target)
    : target_(target) {
  Builder(source, *this).build();
}

}  // namespace dsckpt
