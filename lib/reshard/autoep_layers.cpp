#include "reshard/autoep_layers.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "dsckpt/error.h"

namespace dsckpt {
using pickle::Document;
using pickle::Value;
namespace {

Value list_of_integers(Document& document, const Shape& values) {
  std::vector<Value> items;
  for (const int64_t value : values) items.push_back(Document::integer(value));
  return document.list(std::move(items));
}

Shape row_major_strides(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

// One entry of ds_autoep_layers for one rank of a new mesh.
class AutoEpLayer {
 public:
  AutoEpLayer(ArchiveCopy& copy, const Value& layer, const ExpertMesh& mesh, uint32_t rank)
      : copy_(copy),
        document_(copy.document()),
        layer_(layer),
        mesh_(mesh),
        ep_rank_(mesh.ep_rank(rank)),
        edp_rank_(mesh.edp_rank(rank)),
        experts_(layer.at("num_experts").as_int()),
        local_(experts_ / mesh.ep) {
    if (experts_ < 1 || experts_ % mesh.ep != 0) {
      throw UsageError(
          counted(experts_, "expert") + " of '" + std::string(layer.at("module_path").as_string()) +
          "' cannot be divided evenly over " + counted(mesh.ep, "expert-parallel rank"));
    }
    check_placement();
  }

  Value value() {
    return copy_.dict_of(layer_, [&](std::string_view key, const Value& value) {
      return std::optional(field(key, value));
    });
  }

 private:
  Value field(std::string_view key, const Value& value) {
    if (key == "num_local_experts") return Document::integer(local_);
    if (key == "ep_size") return Document::integer(mesh_.ep);
    if (key == "expert_placement") return placement();
    if (key == "affine_maps") return affine_maps(value);
    if (key == "ep_group_name") return document_.string(expert_group_name(mesh_.ep));
    if (key == "ep_rank") return Document::integer(ep_rank_);
    if (key == "expert_data_parallel_rank") return Document::integer(edp_rank_);
    if (key == "expert_data_parallel_world_size") return Document::integer(mesh_.edp());
    if (key == "global_expert_start") return Document::integer(ep_rank_ * local_);
    if (key == "global_expert_end") return Document::integer((ep_rank_ + 1) * local_);
    return copy_.of(value);
  }

  void check_placement() const {
    int64_t next = 0;
    const Value placement = layer_.find_or_none("expert_placement");
    for (const Value& rank : placement.find_or_none("ranks").sequence_or_empty()) {
      for (const Value& expert : rank.at("experts").as_sequence()) {
        if (expert.as_int() == next++) continue;
        throw UnsupportedError(
            {.member = "ds_autoep_layers"},
            "places the experts of '" + std::string(layer_.at("module_path").as_string()) +
                "' in a different order than DeepSpeed's engine, which could not load them");
      }
    }
  }

  Value placement() {
    const Value dict = document_.dict();
    copy_.set(dict, "version", Document::integer(1));
    copy_.set(dict, "num_experts", Document::integer(experts_));
    copy_.set(dict, "ep_size", Document::integer(mesh_.ep));
    std::vector<Value> ranks;
    for (uint32_t rank = 0; rank < mesh_.ep; ++rank) {
      const Value entry = document_.dict();
      copy_.set(entry, "rank", Document::integer(rank));
      Shape experts;
      for (int64_t i = 0; i < local_; ++i) experts.push_back(rank * local_ + i);
      copy_.set(entry, "experts", list_of_integers(document_, experts));
      ranks.push_back(entry);
    }
    copy_.set(dict, "ranks", document_.list(std::move(ranks)));
    return dict;
  }

  Value affine_maps(const Value& maps) {
    return copy_.dict_of(maps, [&](std::string_view key, const Value& value) {
      if (key != "params") return std::optional(copy_.of(value));
      return std::optional(copy_.dict_of(value, [&](std::string_view, const Value& entry) {
        return std::optional(affine_map(entry));
      }));
    });
  }

  // checkpoint/autoep_affine.py autoep_placement_to_affine_map.
  Value affine_map(const Value& entry) {
    Shape shape;
    for (const Value& dim : entry.at("logical_shape").as_sequence()) shape.push_back(dim.as_int());
    if (shape.empty() || shape[0] != experts_) {
      throw InconsistentError({.member = "ds_autoep_layers"}, "has an affine map of the shape " +
                                                                  to_text(shape) + " for " +
                                                                  counted(experts_, "expert"));
    }
    const Value dict = document_.dict();
    copy_.set(dict, "logical_shape", list_of_integers(document_, shape));
    const Value ranks = document_.dict();
    const Shape strides = row_major_strides(shape);
    shape[0] = local_;
    for (uint32_t rank = 0; rank < mesh_.ep; ++rank) {
      const Value piece = document_.dict();
      copy_.set(piece, "shape", list_of_integers(document_, shape));
      copy_.set(piece, "source", place(rank * local_ * strides[0], strides));
      copy_.set(piece, "dest", place(0, strides));
      copy_.set(piece, "locations", list_of_integers(document_, {rank}));
      const Value of_rank = document_.dict();
      copy_.set(of_rank, "shard_shape", list_of_integers(document_, shape));
      copy_.set(of_rank, "pieces", document_.list({piece}));
      document_.set_item(ranks, Document::integer(rank), of_rank);
    }
    copy_.set(dict, "ranks", ranks);
    return dict;
  }

  Value place(int64_t offset, const Shape& strides) {
    return document_.list({Document::integer(offset), list_of_integers(document_, strides)});
  }

  ArchiveCopy& copy_;
  Document& document_;
  const Value& layer_;
  const ExpertMesh& mesh_;
  int64_t ep_rank_;
  int64_t edp_rank_;
  int64_t experts_;
  int64_t local_;
};

}  // namespace

Value autoep_layers_value(ArchiveCopy& copy, const Value& layers, const ExpertMesh& mesh,
                          uint32_t rank) {
  if (layers.is_none()) return {};
  std::vector<Value> made;
  for (const Value& layer : layers.as_sequence()) {
    made.push_back(AutoEpLayer(copy, layer, mesh, rank).value());
  }
  return copy.document().list(std::move(made));
}

}  // namespace dsckpt
