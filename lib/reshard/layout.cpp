#include "reshard/layout.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "checkpoint/shard.h"
#include "deepspeed/keys.h"
#include "dsckpt/error.h"

namespace dsckpt {
using pickle::Kind;
using pickle::Value;
namespace {

uint64_t numel_of(const Param& param) {
  return static_cast<uint64_t>(param.weight.numel());
}

// Collects the pieces of a tensor.
class Pieces {
 public:
  void add(TensorSource piece) {
    if (piece.numel() > 0) pieces_.push_back(std::move(piece));
  }
  void add_zeros(DType dtype, uint64_t count) {
    if (count > 0) add(TensorSource::zeros(dtype, {static_cast<int64_t>(count)}));
  }
  TensorSource take(DType dtype) {
    if (pieces_.empty()) return TensorSource::zeros(dtype, {0});
    return TensorSource::cat(0, std::move(pieces_));
  }

 private:
  std::vector<TensorSource> pieces_;
};

TensorSource elements(const TensorSource& tensor, uint64_t begin, uint64_t count) {
  return tensor.flatten().narrow(0, static_cast<int64_t>(begin), static_cast<int64_t>(count));
}

// Values that are equal, as far as can be told without reading more than a number.
bool same_whole(const ShardValue& a, const ShardValue& b) {
  if (a.archive == nullptr || b.archive == nullptr) return a.archive == b.archive;
  if (a.archive == b.archive && a.value.identity() != nullptr &&
      a.value.identity() == b.value.identity()) {
    return true;
  }
  if (a.value.kind() != b.value.kind()) return false;
  if (a.value.is_none()) return true;
  const auto x = a.archive->scalar(a.value);
  const auto y = b.archive->scalar(b.value);
  if (x || y) return x == y;
  return same_plain_data(a.value, b.value);
}

}  // namespace

ReshardLayout::ReshardLayout(const Checkpoint& source, const ReshardTarget& target)
    : source_(source), target_(target), experts_(source) {
  make_groups();
  make_runs();
  find_frozen();
}

// Whether the optimizer has a tensor for each parameter.
bool ReshardLayout::is_single() const {
  return target_.wrapper == EngineWrapper::plain || target_.wrapper == EngineWrapper::fp16_unfused;
}

// Elements: 16 bytes of the parameters' type.
uint64_t ReshardLayout::alignment() const {
  if (!target_.parameter_alignment) return 1;
  return 16 / size_of(target_.param_dtype.value_or(param_dtype_of(source_)));
}

ReshardLayout::Group ReshardLayout::made_group(const ParamGroup& group) {
  Group made{.settings = group.settings,
             .experts = is_expert_group(group),
             .mesh = {target_.dp, group.ep_size, target_.data_before_experts},
             .parts = {}};
  for (uint32_t ep_rank = 0; ep_rank < group.ep_size; ++ep_rank) {
    Params params;
    for (const std::string& name : group.params) {
      if (!made.experts) {
        params.push_back(source_.find(name));
        continue;
      }
      local_.push_back(experts_.local(name, ep_rank, group.ep_size));
      params.push_back(&local_.back());
    }
    Params ordered;
    const uint32_t ranks = target_.round_robin ? made.mesh.edp() : 1;
    for (const size_t i : round_robin_order(params.size(), ranks)) ordered.push_back(params[i]);
    made.parts.push_back(std::move(ordered));
  }
  return made;
}

void ReshardLayout::make_groups() {
  for (const ParamGroup& group : target_.groups) {
    Group made = made_group(group);
    std::vector<uint64_t> numels;
    for (const Param* param : made.params()) numels.push_back(numel_of(*param));
    if (is_zero12()) made.flat = flat_layout(numels, made.mesh.edp(), alignment());
    check_group(made);
    groups_.push_back(std::move(made));
  }
  check_module();
}

void ReshardLayout::make_runs() {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Params& params = groups_[g].params();
    if (params.empty()) continue;
    std::vector<size_t> ends;
    if (is_single()) {
      for (size_t i = 0; i < params.size(); ++i) ends.push_back(i + 1);
    } else if (target_.stage == 3) {
      std::vector<uint64_t> numels;
      for (const Param* param : params) numels.push_back(numel_of(*param));
      ends = sub_group_ends(numels, groups_[g].mesh.edp(), target_.sub_group_size);
    } else {
      ends.push_back(params.size());
    }
    size_t begin = 0;
    for (const size_t end : ends) {
      const Run run{.group = g, .begin = begin, .end = end};
      check_run(run);
      runs_.push_back(run);
      begin = end;
    }
  }
}

// What the optimizer has not, or has and does not train any more; frozen_param_shapes lists the
// latter.
void ReshardLayout::find_frozen() {
  std::unordered_set<std::string> names;
  const auto add = [&](const Param* param) {
    if (param == nullptr || param->kind == ParamKind::buffer || !param->alias_of.empty()) return;
    if (names.insert(param->name).second) frozen_.push_back(param);
  };
  std::unordered_set<std::string> members;
  for (const ParamGroup& group : target_.groups) {
    for (const std::string& name : group.params) {
      for (uint32_t rank = 0; rank < group.ep_size; ++rank) {
        members.insert(is_expert_group(group) ? experts_.global(name, rank, group.ep_size).name
                                              : name);
      }
    }
  }
  const Value saved =
      source_.model_files().front().archive->root().find_or_none(keys::kFrozenParamShapes);
  if (saved.is_mapping()) {
    for (const auto& entry : saved.as_dict().items) {
      if (entry.first.is(Kind::string)) add(source_.find(entry.first.as_string()));
    }
  }
  // AutoEP's router has an alias in `module` that neither shared_params nor this list knows.
  if (source_.facts().model_parallel && saved.is_mapping()) return;
  for (const Param& param : source_.params()) {
    if (!members.contains(param.name)) add(&param);
  }
}

// Strict loading wants every parameter of the model. A pipeline's layers and experts have files of
// their own.
void ReshardLayout::check_module() const {
  const CheckpointFile& file = source_.model_files().front();
  const Value module = file.archive->root().find_or_none(keys::kModule);
  if (module.is_none()) return;
  for (const Group& group : groups_) {
    if (group.experts) continue;
    for (const Param* param : group.params()) {
      if (TorchArchive::is_tensor(module.find_or_none(param->name))) continue;
      throw InconsistentError(
          {.file = file.path.string(), .member = std::string(keys::kModule), .tensor = param->name},
          "is missing or no tensor");
    }
  }
}

void ReshardLayout::check_group(const Group& group) const {
  for (const Param* param : group.params()) {
    const Where where{.file = source_.tag_folder().string(), .tensor = param->name};
    if (param->weight.dtype() != group.params().front()->weight.dtype()) {
      throw UnsupportedError(where, "has a master of another type than '" +
                                        group.params().front()->name + "' of its group");
    }
    // Adafactor keeps other states of a matrix than of the vectors ZeRO gives it.
    if (!is_single() || source_.facts().zero_stage == 0) continue;
    for (const ParamState& state : param->states) {
      if (state.key != "variance" || param->weight.shape().size() < 2) continue;
      throw UnsupportedError(where,
                             "has Adafactor's state 'variance', of a vector; without ZeRO it keeps "
                             "others of a matrix");
    }
  }
}

// What one tensor of the optimizer is made of has to have the same states, and what the optimizer
// keeps once for it has to be the same.
void ReshardLayout::check_run(const Run& run) const {
  const Group& group = groups_[run.group];
  for (const Params& part : group.parts) {
    for (size_t i = run.begin; i < run.end; ++i) {
      check_same_states(*part[i], *group.params()[run.begin]);
    }
  }
}

void ReshardLayout::check_same_states(const Param& param, const Param& first) const {
  const auto differ = [&](const std::string& what) {
    throw UnsupportedError(
        {.file = source_.tag_folder().string(), .tensor = param.name},
        what + " than '" + first.name + "', beside which the new run's optimizer has it");
  };
  bool same = param.states.size() == first.states.size();
  for (size_t i = 0; same && i < first.states.size(); ++i) {
    same = param.states[i].key == first.states[i].key &&
           param.states[i].value.dtype() == first.states[i].value.dtype();
  }
  if (!same) differ("has other optimizer states");
  if (!same_whole(param.step, first.step)) differ("was stepped another number of times");
  for (const WholeState& other : param.others) {
    if (other.same_on_all_ranks) continue;
    throw UnsupportedError({.file = source_.tag_folder().string(), .tensor = param.name},
                           "has an optimizer state '" + other.key +
                               "' that is neither one value an element nor the same number on "
                               "all ranks; it cannot be cut anew");
  }
  bool equal = param.others.size() == first.others.size();
  for (size_t i = 0; equal && i < first.others.size(); ++i) {
    equal = param.others[i].key == first.others[i].key &&
            same_whole(param.others[i].value, first.others[i].value);
  }
  if (!equal) differ("has other values in its optimizer states");
}

std::vector<ReshardLayout::Slice> ReshardLayout::slices(const Group& group, uint32_t rank) const {
  const FlatLayout& flat = group.flat;
  const Params& params = group.params_of(rank);
  const uint64_t begin = group.mesh.edp_rank(rank) * flat.partition;
  const uint64_t end = begin + flat.partition;
  // The parameter before the first that begins behind `begin` may reach into the partition.
  const auto after = std::upper_bound(flat.begins.begin(), flat.begins.end(), begin);
  auto i = static_cast<size_t>(after - flat.begins.begin());
  i = i == 0 ? 0 : i - 1;
  std::vector<Slice> slices;
  for (; i < params.size() && flat.begins[i] < end; ++i) {
    const uint64_t from = std::max(begin, flat.begins[i]);
    const uint64_t to = std::min(end, flat.begins[i] + numel_of(*params[i]));
    if (from >= to) continue;
    slices.push_back({params[i], from - flat.begins[i], from - begin, to - from});
  }
  return slices;
}

uint64_t ReshardLayout::real_part(const Group& group, uint32_t rank) const {
  const uint64_t begin = group.mesh.edp_rank(rank) * group.flat.partition;
  return std::clamp(group.flat.used, begin, begin + group.flat.partition) - begin;
}

TensorSource ReshardLayout::partition(const Group& group, uint32_t rank, bool padded,
                                      const TensorOf& tensor_of) const {
  const DType dtype = tensor_of(*group.params().front()).dtype();
  Pieces pieces;
  uint64_t at = 0;
  for (const Slice& slice : slices(group, rank)) {
    pieces.add_zeros(dtype, slice.start - at);
    pieces.add(elements(tensor_of(*slice.param), slice.begin, slice.numel));
    at = slice.start + slice.numel;
  }
  pieces.add_zeros(dtype, (padded ? group.flat.partition : real_part(group, rank)) - at);
  return pieces.take(dtype);
}

TensorSource ReshardLayout::of_run(const Run& run, uint32_t rank, const TensorOf& tensor_of) const {
  if (is_zero12()) return partition(groups_[run.group], rank, true, tensor_of);
  const auto params = params_of(run, rank);
  if (is_single()) return tensor_of(*params.front());
  const ExpertMesh& mesh = groups_[run.group].mesh;
  Pieces pieces;
  for (const Param* param : params) {
    const TensorSource tensor = tensor_of(*param);
    pieces.add(target_.stage == 3 ? piece(tensor, mesh.edp_rank(rank), mesh.edp())
                                  : tensor.flatten());
  }
  return pieces.take(tensor_of(*params.front()).dtype());
}

TensorSource ReshardLayout::state_of(const Run& run, uint32_t rank, size_t i) const {
  const auto tensor_of = [i](const Param& param) { return param.states[i].value; };
  const Group& group = groups_[run.group];
  const bool muon = params_of(run, rank).front()->states[i].key == keys::kMomentumBuffer &&
                    group.settings.value.find_or_none(keys::kUseMuon).is_true();
  if (is_zero12() && muon) return whole_momenta(group, rank, tensor_of);
  // Elastic files cut the padding off.
  if (target_.elastic) return partition(group, rank, false, tensor_of);
  return of_run(run, rank, tensor_of);
}

// stage_1_and_2.py get_flat_partition: the momenta of all parameters that reach into the partition,
// whole.
TensorSource ReshardLayout::whole_momenta(const Group& group, uint32_t rank,
                                          const TensorOf& tensor_of) const {
  Pieces pieces;
  for (const Slice& slice : slices(group, rank)) pieces.add(tensor_of(*slice.param).flatten());
  return pieces.take(tensor_of(*group.params().front()).dtype());
}

TensorSource ReshardLayout::piece(const TensorSource& tensor, uint32_t rank, uint32_t ranks) {
  const auto numel = static_cast<uint64_t>(tensor.numel());
  const uint64_t length = piece_of(numel, ranks);
  const uint64_t begin = std::min(numel, rank * length);
  const uint64_t end = std::min(numel, begin + length);
  Pieces pieces;
  if (end > begin) pieces.add(elements(tensor, begin, end - begin));
  pieces.add_zeros(tensor.dtype(), length - (end - begin));
  return pieces.take(tensor.dtype());
}

}  // namespace dsckpt
