// How shards make up one tensor, told as geometry: DeepSpeed's affine map, format version 1.
//
// A shard is a list of pieces. A piece is a block of elements with an offset and strides in the
// whole ("logical") tensor and in the shard. Both are row-major: the arguments of torch.as_strided.
// Source: deepspeed/checkpoint/affine.py, autoep_affine.py.
//
// DeepSpeed's `source` is the place in the logical tensor and `dest` the place in the shard. A
// rebuild reads `dest` and writes `source`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype_names.h"
#include "checkpoint/shared_list.h"
#include "checkpoint/tp_cut.h"
#include "dsckpt/error.h"
#include "pickle/pickle.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// The ranks that hold a block, rising, none twice. Pieces share the list that they share in a file,
// which is as long as there are ranks.
class AffineLocations {
 public:
  AffineLocations(std::initializer_list<int64_t> ranks = {})
      : AffineLocations(std::vector<int64_t>(ranks)) {}
  explicit AffineLocations(std::vector<int64_t> ranks)
      : ranks_(std::make_shared<const std::vector<int64_t>>(std::move(ranks))) {}

  const std::vector<int64_t>& ranks() const { return *ranks_; }
  bool operator==(const AffineLocations& other) const {
    return ranks_ == other.ranks_ || *ranks_ == *other.ranks_;
  }

 private:
  std::shared_ptr<const std::vector<int64_t>> ranks_;
};

struct AffinePiece {
  Shape shape;
  int64_t source_offset = 0;
  Strides source_strides;
  int64_t dest_offset = 0;
  Strides dest_strides;
  AffineLocations locations;
  double scale = 1;  // shard == logical * scale
  bool operator==(const AffinePiece&) const = default;
};

struct KnownAffine;

// ParamAffineMap. Two maps are equal if DeepSpeed's to_dict() of them is.
struct AffineMap {
  struct Rank {
    Shape shard_shape;
    SharedList<AffinePiece> pieces;
    bool operator==(const Rank&) const = default;
  };
  Shape logical_shape;
  SharedList<Rank> ranks;  // by rank
  bool operator==(const AffineMap&) const = default;

  // ParamAffineMap.from_dict. Throws CorruptError, its place below `where`, for values that are
  // missing, of the wrong kind, negative or too large. Throws it also for a scale that is zero or
  // not finite, and for ranks other than 0, 1, 2 ... (ints or their digits). AffineAssembly checks
  // if the pieces fit together. `known`: the values read for all maps of the same pickle, this one
  // too.
  static AffineMap read(const pickle::Value& entry, const Where& where, KnownAffine& known);
  static AffineMap read(const pickle::Value& entry, const Where& where);

  // autoep_affine.py autoep_placement_to_affine_map. The parameter has `logical_shape` [experts,
  // ...]; its rank r holds the experts that `placement` (AutoEP's expert_placement) gives it, in
  // that order. Throws CorruptError for a placement that DeepSpeed would reject, UnsupportedError
  // for another version of it. Throws InconsistentError if the shape is not one of that many
  // experts.
  static AffineMap from_expert_placement(const pickle::Value& placement, const Shape& logical_shape,
                                         const Where& where);
};

// The values that were read from a pickle, by their identity there.
struct KnownAffine {
  std::map<const void*, AffineLocations> locations;
  std::map<const void*, SharedList<AffinePiece>> pieces;
  std::map<const void*, SharedList<AffineMap::Rank>> ranks;
};

// The way from the shards to the logical tensor, found once and used for each of its states.
class AffineAssembly {
 public:
  // Checks that the pieces of each rank tile its shard, and that together they tile the logical
  // tensor. Each element comes once, except in blocks that several ranks hold whole; `locations`
  // must name just these ranks. Throws CorruptError if not. Throws UnsupportedError for a scale
  // other than 1 (the optimizer state would need more than numbers scaled back). Throws it also for
  // a piece that is not an axis-aligned box of both tensors. Throws it as well for boxes that
  // straight cuts from edge to edge do not part. No release writes any of these. In n pieces of d
  // dimensions, O(d n log n) for each of at most 64 levels of cuts.
  explicit AffineAssembly(const AffineMap& map);

  const Shape& shape() const { return shape_; }
  const std::vector<Shape>& shard_shapes() const { return shard_shapes_; }

  // How many boxes the logical tensor is made of.
  size_t pieces() const { return root_.parts.empty() ? 1 : root_.parts.size(); }
  // The map as a cut of parts along one dimension. All ranks have a part, or share it in their
  // order. The parts follow each other in each shard. nullopt if the map is none.
  std::optional<TpCut> cut() const;

  // Returns the logical tensor; blocks of several holders are TensorSource::same. Takes `shards` by
  // rank, of shard_shapes(), else throws InconsistentError. If blocks differ, the error names them
  // by `what`, to which " ranks 0 and 1" is added: "fp32 of 'h.0.weight' on tensor-parallel".
  TensorSource merge(const std::vector<TensorSource>& shards, std::string_view what) const;

 private:
  struct Holder {
    size_t rank;
    Shape begin, size;  // the box in the shard
  };
  // A part of the logical tensor: cut along `dim` into `parts`, or, without any, one box.
  struct Region {
    size_t dim = 0;
    std::vector<Region> parts;
    Shape shape;
    std::vector<Holder> holders;
  };
  friend class AffineAssembler;

  TensorSource merge(const Region& region, const std::vector<TensorSource>& shards,
                     std::string_view what) const;

  Shape shape_;
  std::vector<Shape> shard_shapes_;
  Region root_;
};

}  // namespace dsckpt
