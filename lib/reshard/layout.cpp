#include "reshard/layout.h"

#include <algorithm>
#include <utility>

#include "deepspeed/keys.h"

namespace dsckpt {
namespace {

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

}  // namespace

bool ReshardLayout::is_single() const {
  return target_.wrapper == EngineWrapper::plain || target_.wrapper == EngineWrapper::fp16_unfused;
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
  if (target_.is_zero12()) return partition(groups_[run.group], rank, true, tensor_of);
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

const Param* ReshardLayout::stepped(const Run& run, uint32_t rank) const {
  const auto params = params_of(run, rank);
  const auto found =
      std::find_if(params.begin(), params.end(), [](const Param* param) { return !param->fresh; });
  return found == params.end() ? nullptr : *found;
}

TensorSource ReshardLayout::state_of(const Run& run, uint32_t rank, size_t i) const {
  const ParamState& known = stepped(run, rank)->states[i];
  const auto tensor_of = [&](const Param& param) {
    return param.fresh ? TensorSource::zeros(known.value.dtype(), param.weight.shape())
                       : param.states[i].value;
  };
  const Group& group = groups_[run.group];
  const bool muon = known.key == keys::kMomentumBuffer &&
                    group.settings.value.find_or_none(keys::kUseMuon).is_true();
  if (target_.is_zero12() && muon) return whole_momenta(group, rank, tensor_of);
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
