// The values of model_values.h that say where the ranks' parts of the model are.
#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype_names.h"
#include "base/text.h"
#include "checkpoint/affine_map.h"
#include "checkpoint/pattern_list.h"
#include "checkpoint/tp_cut.h"
#include "deepspeed/keys.h"
#include "dsckpt/error.h"
#include "pickle/python_objects.h"
#include "reshard/experts.h"
#include "reshard/model_values.h"

namespace dsckpt {
using pickle::Document;
using pickle::Kind;
using pickle::ObjectNode;
using pickle::Value;
namespace {

const std::optional<GridPlace>& grid_of(const ModelFile& file) {
  return file.from.checkpoint.facts().regridded;
}

// An entry of affine_map for other ranks. deepspeed/checkpoint/affine.py.
class AffineEntry {
 public:
  AffineEntry(ArchiveCopy& copy, Shape logical, uint32_t ranks)
      : copy_(copy),
        document_(copy.document()),
        logical_(std::move(logical)),
        strides_(contiguous_strides(logical_)),
        ranks_(ranks) {}

  Value of(const TpCut& old) {
    const TpCut cut = old.for_ranks(ranks_);
    std::vector<Value> entries;
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      entries.push_back(cut.is_whole() ? whole() : shard(cut, rank));
    }
    return entry(entries);
  }

  // For a lone rank, whose shard is the whole tensor, in the pieces of `map`. Their number says
  // that no simple rule cuts it.
  Value of_pieces(const AffineMap& map) {
    std::map<int64_t, Shape> pieces;  // by their places
    for (const AffineMap::Rank& rank : map.ranks) {
      for (const AffinePiece& piece : rank.pieces) pieces.emplace(piece.source_offset, piece.shape);
    }
    std::vector<Value> made;
    for (const auto& [offset, shape] : pieces) {
      made.push_back(piece(shape, place(offset, strides_), place(offset, strides_), {0}));
    }
    return entry({of_rank(logical_, std::move(made))});
  }

 private:
  Value entry(const std::vector<Value>& of_ranks) {
    const Value ranks = document_.dict();
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
      document_.set_item(ranks, Document::integer(static_cast<int64_t>(rank)), of_ranks[rank]);
    }
    const Value made = document_.dict();
    copy_.set(made, "logical_shape", document_.list(integers(logical_)));
    copy_.set(made, "ranks", ranks);
    return made;
  }

  std::vector<int64_t> all_ranks() const {
    std::vector<int64_t> ranks(ranks_);
    std::iota(ranks.begin(), ranks.end(), int64_t{0});
    return ranks;
  }

  Value whole() {
    return of_rank(logical_,
                   {piece(logical_, place(0, strides_), place(0, strides_), all_ranks())});
  }

  Value shard(const TpCut& cut, uint32_t rank) {
    Shape shape = logical_;
    shape[cut.dim()] = 0;
    for (const TpPart& part : cut.parts()) shape[cut.dim()] += part.widths[rank];
    const Strides strides = contiguous_strides(shape);
    std::vector<Value> pieces;
    int64_t begin = 0;
    int64_t reached = 0;
    for (size_t i = 0; i < cut.parts().size(); ++i) {
      const TpPart& part = cut.parts()[i];
      const auto first = part.widths.begin();
      int64_t from = begin;
      if (!part.on_every_rank) from += std::accumulate(first, first + rank, int64_t{0});
      Shape size = logical_;
      size[cut.dim()] = part.widths[rank];
      if (numel(size) > 0) {
        pieces.push_back(piece(size, place(from * strides_[cut.dim()], strides_),
                               place(reached * strides[cut.dim()], strides),
                               part.on_every_rank ? all_ranks() : std::vector<int64_t>{rank}));
      }
      reached += part.widths[rank];
      begin += part.rows();
    }
    return of_rank(shape, std::move(pieces));
  }

  Value of_rank(const Shape& shape, std::vector<Value> pieces) {
    const Value made = document_.dict();
    copy_.set(made, "shard_shape", document_.list(integers(shape)));
    copy_.set(made, "pieces", document_.list(std::move(pieces)));
    return made;
  }

  Value piece(const Shape& shape, const Value& source, const Value& dest,
              const std::vector<int64_t>& locations) {
    const Value made = document_.dict();
    copy_.set(made, "shape", document_.list(integers(shape)));
    copy_.set(made, "source", source);
    copy_.set(made, "dest", dest);
    copy_.set(made, "locations", document_.list(integers(locations)));
    return made;
  }

  Value place(int64_t offset, const Strides& strides) {
    return document_.list({Document::integer(offset), document_.list(integers(strides))});
  }

  ArchiveCopy& copy_;
  Document& document_;
  Shape logical_;
  Strides strides_;
  uint32_t ranks_;
};

// One entry of ds_autoep_layers for one rank of a new mesh.
class AutoEpLayer {
 public:
  AutoEpLayer(ArchiveCopy& copy, const Value& layer, const ExpertMesh& mesh, uint32_t rank,
              int stage)
      : copy_(copy),
        document_(copy.document()),
        layer_(layer),
        mesh_(mesh),
        stage_(stage),
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
    const Value made = copy_.dict_of(layer_, [&](std::string_view key, const Value& value) {
      return std::optional(field(key, value));
    });
    for (const std::string_view key : {kFormat, kFormatVersion}) {
      if (stage_ == 3 && !layer_.find(key)) copy_.set(made, key, field(key, {}));
    }
    return made;
  }

 private:
  // deepspeed/checkpoint/constants.py AUTOEP_ZERO3_EXPERT_STATE_FORMAT_KEY: stage 3 has experts
  // with the ranks, not in files of their own.
  static constexpr std::string_view kFormat = "checkpoint_format";
  static constexpr std::string_view kFormatVersion = "checkpoint_format_version";

  Value field(std::string_view key, const Value& value) {
    if (key == kFormat) {
      return document_.string(stage_ == 3 ? "zero3_partitioned" : "per_expert_files");
    }
    if (key == kFormatVersion) return stage_ == 3 ? Document::integer(1) : Value();
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
      copy_.set(entry, "experts", document_.list(integers(experts)));
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
    const TpPart part{.widths = std::vector<int64_t>(mesh_.ep, local_)};
    return AffineEntry(copy_, shape, mesh_.ep).of(TpCut(0, shape.size(), {part}));
  }

  ArchiveCopy& copy_;
  Document& document_;
  const Value& layer_;
  const ExpertMesh& mesh_;
  int stage_;
  int64_t ep_rank_;
  int64_t edp_rank_;
  int64_t experts_;
  int64_t local_;
};

// The cuts of the parameters that the patterns of `params` are for, by pattern.
std::map<std::string_view, const TpCut*> cuts_by_pattern(const ModelFile& file,
                                                         const Value& params) {
  PatternList patterns;
  for (const auto& each : params.as_dict().items) {
    patterns.add(std::string(each.first.as_string()));
  }
  const auto& items = params.as_dict().items;
  std::map<std::string_view, const TpCut*> cuts;
  for (const Param& param : file.from.checkpoint.params()) {
    for (const size_t i : patterns.matches(param.name)) {
      cuts[items[i].first.as_string()] = param.cut.get();
    }
  }
  return cuts;
}

Value affine_maps(ModelFile& file, const Value& saved) {
  const uint32_t ranks = grid_of(file)->mesh.tp;
  return file.copy.dict_of(saved, [&](std::string_view key, const Value& value) {
    if (key != "params") return std::optional(file.copy.of(value));
    const auto cuts = cuts_by_pattern(file, value);
    return std::optional(
        file.copy.dict_of(value, [&](std::string_view pattern, const Value& entry) {
          const AffineMap map = AffineMap::read(entry, {.file = file.from.where().file});
          AffineEntry made(file.copy, map.logical_shape, ranks);
          const auto found = cuts.find(pattern);
          const TpCut* cut = found == cuts.end() ? nullptr : found->second;
          return std::optional(cut == nullptr ? made.of_pieces(map) : made.of(*cut));
        }));
  });
}

Value shard_widths(ModelFile& file, const Value& saved) {
  const uint32_t ranks = grid_of(file)->mesh.tp;
  const auto cuts = cuts_by_pattern(file, saved);
  return file.copy.dict_of(saved, [&](std::string_view pattern, const Value& rows) {
    const auto found = cuts.find(pattern);
    // A pattern of parameters in other pipeline stages, whose files have it too.
    if (found == cuts.end() || found->second == nullptr) {
      std::vector<Value> made;
      for (const Value& row : list_or_tuple(rows)) {
        TpPart part;
        for (const Value& width : list_or_tuple(row)) part.widths.push_back(width.as_int());
        made.push_back(file.document().list(integers(part.shares_of(ranks))));
      }
      return std::optional(file.document().list(std::move(made)));
    }
    std::vector<Value> made;
    const TpCut cut = found->second->for_ranks(ranks);
    for (const TpPart& part : cut.parts()) {
      made.push_back(file.document().list(integers(part.widths)));
    }
    return std::optional(file.document().list(std::move(made)));
  });
}

// None if the ranks' shares tell all cuts.
Value first_shares(ModelFile& file) {
  Document& document = file.document();
  const Value made = document.dict();
  bool any = false;
  for (const Param& param : file.from.checkpoint.params()) {
    if (param.cut == nullptr || !param.cut->is_uneven()) continue;
    any = true;
    std::vector<Value> rows;
    std::vector<Value> flags;
    for (const TpPart& part : param.cut->parts()) {
      rows.push_back(document.list(integers(part.widths)));
      flags.push_back(Document::boolean(part.on_every_rank));
    }
    const Value entry = document.dict();
    file.copy.set(entry, keys::kSharesDim,
                  Document::integer(static_cast<int64_t>(param.cut->dim())));
    file.copy.set(entry, keys::kSharesRows, document.list(std::move(rows)));
    file.copy.set(entry, keys::kSharesOnEveryRank, document.list(std::move(flags)));
    file.copy.set(made, param.name, entry);
  }
  return any ? made : Value();
}

// nullopt: as it was.
std::optional<int64_t> new_argument(const ModelFile& file, std::string_view key,
                                    const Value& saved) {
  const GridPlace& place = *grid_of(file);
  const int64_t tp = place.mesh.tp;
  const int64_t pp = place.mesh.pp;
  const int64_t dp = file.target().dp;
  if (!saved.is(Kind::integer)) return std::nullopt;
  if (key == "tensor_model_parallel_size" || key == "model_parallel_size") return tp;
  if (key == "pipeline_model_parallel_size") return pp;
  if (key == "transformer_pipeline_model_parallel_size") return pp;
  // NeoX has 0 for a model that is not a pipeline.
  if (key == "pipe_parallel_size" && saved.as_int() > 0) return pp;
  if (key == "data_parallel_size") return dp;
  if (key == "world_size") return tp * pp * dp;
  if (key == "padded_vocab_size") return place.padded_vocab_size;
  return std::nullopt;
}

}  // namespace

Value autoep_layers(ModelFile& file, const Value& layers) {
  if (layers.is_none()) return {};
  const ReshardTarget& target = file.target();
  const ExpertMesh mesh{target.dp, target.ep, target.data_before_experts};
  std::vector<Value> made;
  for (const Value& layer : layers.as_sequence()) {
    made.push_back(AutoEpLayer(file.copy, layer, mesh, file.rank, target.stage).value());
  }
  return file.document().list(std::move(made));
}

Value mp_world_size(ModelFile& file, const Value& saved) {
  const auto& place = grid_of(file);
  return place ? Document::integer(place->mesh.pp * place->mesh.tp) : file.copy.of(saved);
}

Value parallel_dimensions(ModelFile& file, const Value& saved) {
  const auto& place = grid_of(file);
  if (!place || !saved.is_mapping()) return file.copy.of(saved);
  return file.copy.dict_of(saved, [&](std::string_view key, const Value& value) {
    if (key == "pp_degree") return std::optional(Document::integer(place->mesh.pp));
    if (key == "tp_degree") return std::optional(Document::integer(place->mesh.tp));
    return std::optional(file.copy.of(value));
  });
}

Value grid_universal_info(ModelFile& file, const Value& saved) {
  const auto& place = grid_of(file);
  if (!place || !saved.is_mapping()) return file.copy.of(saved);
  const Value made = file.copy.dict_of(saved, [&](std::string_view key, const Value& value) {
    if (key == keys::kFirstShares) return std::optional<Value>();
    if (key == keys::kAffineMap && value.is_mapping())
      return std::optional(affine_maps(file, value));
    if (key == keys::kSubParamShardWidths && value.is_mapping()) {
      return std::optional(shard_widths(file, value));
    }
    if (key == "padded_vocab_size" && place->padded_vocab_size) {
      return std::optional(Document::integer(*place->padded_vocab_size));
    }
    return std::optional(file.copy.of(value));
  });
  if (const Value shares = first_shares(file); !shares.is_none()) {
    file.copy.set(made, keys::kFirstShares, shares);
  }
  return made;
}

Value grid_arguments(ModelFile& file, const Value& saved) {
  if (!grid_of(file)) return file.copy.of(saved);
  const auto change = [&](std::string_view key, const Value& value) {
    const auto number = new_argument(file, key, value);
    return std::optional(number ? Document::integer(*number) : file.copy.of(value));
  };
  if (saved.is(Kind::object) && saved.as_object().has_state &&
      saved.as_object().state.is_mapping()) {
    const ObjectNode& from = saved.as_object();
    const Value made = file.document().object(from.made, file.copy.of(from.callable),
                                              file.copy.of(from.arguments));
    file.document().set_state(made, file.copy.dict_of(from.state, change));
    return made;
  }
  return saved.is_mapping() ? file.copy.dict_of(saved, change) : file.copy.of(saved);
}

}  // namespace dsckpt
