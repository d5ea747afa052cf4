#include "format/rank_tensor.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "base/dtype_names.h"
#include "base/text.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

using pickle::Kind;
using pickle::ObjectNode;
using pickle::Value;

bool is_class(const Value& value, std::string_view name) {
  if (!value.is(Kind::global)) return false;
  const auto [module, called] = value.as_global();
  return module.starts_with("torch.distributed") && called == name;
}

// Returns whether the object has this class. Pickles make it by __new__, or by a call with
// arguments.
bool is_object_of(const Value& value, std::string_view name) {
  return value.is(Kind::object) && is_class(value.as_object().callable, name);
}

// Returns an attribute of an object. With __slots__ the state is a pair, whose second part has
// them.
Value attribute(const Value& object, std::string_view key) {
  if (!object.is(Kind::object)) return {};
  const Value& state = object.as_object().state;
  const auto two = state.sequence_or_empty();
  return (two.size() == 2 ? two[1] : state).find_or_none(key);
}

// Returns an attribute, or else argument `number` of the call that makes the object.
Value setting(const Value& object, std::string_view key, size_t number) {
  const Value value = attribute(object, key);
  if (!value.is_none() || !object.is(Kind::object)) return value;
  const auto arguments = object.as_object().arguments.sequence_or_empty();
  return number < arguments.size() ? arguments[number] : Value();
}

// Returns _rebuild_from_type_v2(function, class, arguments, state), without the Parameter around
// it.
const ObjectNode* typed(const Value& value) {
  if (!value.is(Kind::object)) return nullptr;
  const ObjectNode& object = value.as_object();
  if (object.is_a("torch._utils", "_rebuild_parameter") ||
      object.is_a("torch._utils", "_rebuild_parameter_with_state")) {
    const auto arguments = object.arguments.sequence_or_empty();
    return arguments.empty() ? nullptr : typed(arguments.front());
  }
  const bool is_typed = object.is_a("torch._tensor", "_rebuild_from_type_v2") &&
                        object.arguments.sequence_or_empty().size() == 4;
  return is_typed ? &object : nullptr;
}

[[noreturn]] void refuse(const std::string& what) {
  throw UnsupportedError({}, "is a tensor of one rank whose " + what + " is of an unknown form");
}

int64_t product(const Value& value) {
  if (value.is(Kind::integer)) return value.as_int();
  int64_t all = 1;
  for (const Value& each : value.sequence_or_empty()) {
    if (__builtin_mul_overflow(all, product(each), &all)) refuse("mesh");
  }
  return all;
}

// Returns the number of ranks in each dimension of the mesh.
std::vector<int64_t> mesh_sizes(const TorchArchive& archive, const Value& mesh) {
  std::vector<int64_t> sizes;
  if (const Value layout = attribute(mesh, "_layout"); !layout.is_none()) {
    if (const auto axes = attribute(layout, "axes").sequence_or_empty(); !axes.empty()) {
      for (const Value& axis : axes) sizes.push_back(product(attribute(axis, "shape")));
      return sizes;
    }
    // A dataclass, or a tuple (shape, stride).
    Value shape = attribute(layout, "shape");
    if (shape.is_none() && layout.is(Kind::object)) {
      const auto arguments = layout.as_object().arguments.sequence_or_empty();
      if (!arguments.empty()) shape = arguments.front();
    }
    if (shape.is(Kind::integer)) return {shape.as_int()};
    for (const Value& each : shape.sequence_or_empty()) sizes.push_back(product(each));
    return sizes;
  }
  const Value ranks = attribute(mesh, "mesh");
  if (!TorchArchive::is_tensor(ranks)) refuse("mesh");
  for (const int64_t size : archive.info(ranks).shape) sizes.push_back(size);
  return sizes;
}

// torch.chunk: narrows [first, first + size) to chunk `index` of `count`.
void narrow_to_chunk(int64_t& first, int64_t& size, int64_t count, int64_t index) {
  const int64_t full = size / count + (size % count != 0 ? 1 : 0);
  const int64_t start = std::min(size, full * index);
  first += start;
  size = std::min(full, size - start);
}

struct Placed {
  size_t mesh_dim;
  std::optional<int64_t> split_factor;  // of a _StridedShard
};

// Returns the dimensions of the mesh in the order in which they cut a dimension of the tensor. They
// cut from left to right. A _StridedShard cuts after those to its right whose sizes multiply to
// `split_factor`.
std::vector<size_t> cut_order(const std::vector<Placed>& placed,
                              const std::vector<int64_t>& sizes) {
  std::vector<size_t> order;
  for (auto each = placed.rbegin(); each != placed.rend(); ++each) {
    auto at = order.begin();
    for (int64_t before = 1; each->split_factor && before < *each->split_factor; ++at) {
      if (at == order.end()) refuse("strided placement");
      before *= sizes[*at];
    }
    order.insert(at, each->mesh_dim);
  }
  return order;
}

RankTensor dtensor(const TorchArchive& archive, RankTensor tensor, const Value& state) {
  const Value local = state.find_or_none("_local_tensor");
  const Value spec = state.find_or_none("_spec");
  if (!TorchArchive::is_tensor(local)) refuse("part");
  const Value mesh = attribute(spec, "mesh");
  const std::vector<int64_t> sizes = mesh_sizes(archive, mesh);
  const auto placements = attribute(spec, "placements").sequence_or_empty();
  if (sizes.empty() || placements.size() != sizes.size()) refuse("mesh");
  if (std::any_of(sizes.begin(), sizes.end(), [](int64_t size) { return size < 1; })) {
    refuse("mesh");
  }
  const auto coordinate = attribute(mesh, "_coordinate_on_dim").sequence_or_empty();
  if (coordinate.empty()) return tensor;  // a rank outside the mesh has no elements
  if (coordinate.size() != sizes.size()) refuse("coordinate");

  std::vector<std::vector<Placed>> cuts(tensor.shape.size());
  for (size_t i = 0; i < placements.size(); ++i) {
    const bool is_strided = is_object_of(placements[i], "_StridedShard");
    if (is_strided || is_object_of(placements[i], "Shard")) {
      const Value at = setting(placements[i], "dim", 0);
      const auto dims = static_cast<int64_t>(tensor.shape.size());
      if (!at.is(Kind::integer) || at.as_int() < 0 || at.as_int() >= dims) refuse("placement");
      Placed placed{i, {}};
      if (is_strided) {
        const Value factor = setting(placements[i], "split_factor", 1);
        if (!factor.is(Kind::integer)) refuse("strided placement");
        placed.split_factor = factor.as_int();
      }
      cuts[static_cast<size_t>(at.as_int())].push_back(placed);
    } else if (is_object_of(placements[i], "Partial") ||
               is_object_of(placements[i], "_MaskPartial") ||
               is_object_of(placements[i], "MaskPartial")) {
      tensor.unsupported = "has partial sums, which were not added up over the ranks";
      return tensor;
    } else if (!is_object_of(placements[i], "Replicate")) {
      refuse("placement");
    }
  }
  RankBox box{Shape(tensor.shape.size(), 0), tensor.shape, local};
  for (size_t dim = 0; dim < cuts.size(); ++dim) {
    for (const size_t mesh_dim : cut_order(cuts[dim], sizes)) {
      const int64_t index = coordinate[mesh_dim].as_int();
      if (index < 0 || index >= sizes[mesh_dim]) refuse("coordinate");
      narrow_to_chunk(box.offsets[dim], box.sizes[dim], sizes[mesh_dim], index);
    }
  }
  tensor.boxes.push_back(std::move(box));
  return tensor;
}

RankTensor sharded(RankTensor tensor, const Value& state) {
  for (const Value& shard : state.as_sequence().front().sequence_or_empty()) {
    const Value metadata = attribute(shard, "metadata");
    RankBox box{shape_from_pickle(attribute(metadata, "shard_offsets")),
                shape_from_pickle(attribute(metadata, "shard_sizes")), attribute(shard, "tensor")};
    if (!TorchArchive::is_tensor(box.tensor) || box.offsets.size() != tensor.shape.size()) {
      refuse("shard");
    }
    tensor.boxes.push_back(std::move(box));
  }
  return tensor;
}

}  // namespace

bool is_rank_tensor(const Value& value) {
  const ObjectNode* object = typed(value);
  if (object == nullptr) return false;
  const Value& of = object->arguments.as_sequence()[1];
  return is_class(of, "DTensor") || is_class(of, "ShardedTensor");
}

std::optional<RankTensor> rank_tensor(const TorchArchive& archive, const Value& value) {
  if (!is_rank_tensor(value)) return std::nullopt;
  const auto arguments = typed(value)->arguments.as_sequence();
  // _rebuild_wrapper_subclass(class, type, size, strides, ...)
  const auto whole = arguments[2].sequence_or_empty();
  if (whole.size() < 3) refuse("size");
  RankTensor tensor;
  std::optional<DType> dtype;
  if (whole[1].is(Kind::global)) dtype = dtype_from_torch_name(whole[1].as_global().second);
  if (!dtype) refuse("type");
  tensor.dtype = *dtype;
  tensor.shape = shape_from_pickle(whole[2]);
  const bool is_sharded = is_class(arguments[1], "ShardedTensor");
  const auto state = arguments[3].sequence_or_empty();
  if (is_sharded) {
    if (state.size() < 2) refuse("state");
    tensor = sharded(std::move(tensor), arguments[3]);
  } else {
    tensor = dtensor(archive, std::move(tensor), state.size() == 2 ? state[1] : arguments[3]);
  }
  for (const RankBox& box : tensor.boxes) {
    const TensorInfo info = archive.info(box.tensor);
    if (info.shape == box.sizes && info.dtype == tensor.dtype) continue;
    throw CorruptError({}, "is a part of " + std::string(torch_name(info.dtype)) + " " +
                               to_text(info.shape) + ", where its placements say " +
                               std::string(torch_name(tensor.dtype)) + " " + to_text(box.sizes));
  }
  return tensor;
}

}  // namespace dsckpt
