// One rank's part of a tensor that is spread over ranks, from a state_dict that each rank saved by
// itself. It is a DTensor, or a ShardedTensor of FSDP1.
//
// Sources in torch/distributed: tensor/_api.py (DTensor.__tensor_flatten__),
// tensor/_dtensor_spec.py, device_mesh.py (DeviceMesh.__getstate__), tensor/placement_types.py;
// _shard/sharded_tensor/api.py.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dsckpt/dtype.h"
#include "format/torch_archive.h"
#include "pickle/pickle.h"

namespace dsckpt {

// A box of the elements, and the plain tensor that holds them.
struct RankBox {
  Shape offsets;  // of its first element in the whole
  Shape sizes;
  pickle::Value tensor;
};

struct RankTensor {
  DType dtype = DType::float32;
  Shape shape;                 // of the whole
  std::vector<RankBox> boxes;  // of this rank; replicated boxes are the same on several ranks
  // Why the boxes are not the tensor's elements, such as sums that must still be added; else "".
  std::string unsupported = {};
};

// nullopt if `value` is neither. Throws CorruptError if its parts contradict each other,
// UnsupportedError for placements and meshes of an unknown form.
std::optional<RankTensor> rank_tensor(const TorchArchive& archive, const pickle::Value& value);

// True if the class says that it is one.
bool is_rank_tensor(const pickle::Value& value);

}  // namespace dsckpt
