// One rank's part of a tensor that is spread over ranks, as a state_dict that each rank saved by
// itself has it: a DTensor, or a ShardedTensor of FSDP1.
//
// torch/distributed/tensor/_api.py (DTensor.__tensor_flatten__), _dtensor_spec.py, device_mesh.py
// (DeviceMesh.__getstate__), placement_types.py; torch/distributed/_shard/sharded_tensor/api.py.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dsckpt/dtype.h"
#include "format/torch_archive.h"
#include "pickle/pickle.h"

namespace dsckpt {

// A box of the elements, and the plain tensor that has them.
struct RankBox {
  Shape offsets;  // of its first element in the whole
  Shape sizes;
  pickle::Value tensor;
};

struct RankTensor {
  DType dtype = DType::float32;
  Shape shape;                 // of the whole
  std::vector<RankBox> boxes;  // of this rank; of several ranks the same where it is replicated
  // Why the boxes are not the tensor's elements, such as sums that are still to be added; or "".
  std::string unsupported = {};
};

// nullopt for what is none of these. Throws CorruptError where its parts contradict each other;
// UnsupportedError for placements and meshes of an unknown form.
std::optional<RankTensor> rank_tensor(const TorchArchive& archive, const pickle::Value& value);

// Whether it is one, by the class alone.
bool is_rank_tensor(const pickle::Value& value);

}  // namespace dsckpt
