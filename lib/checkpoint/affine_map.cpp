#include "checkpoint/affine_map.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/text.h"
#include "format/torch_archive.h"
#include "pickle/python_objects.h"

namespace dsckpt {
using pickle::Kind;
using pickle::Value;
namespace {

// Deeper nests of cuts than any builder makes; a bound for time and stack.
constexpr int kMaxCutDepth = 64;
// How often two boxes are compared to say better why they do not fit.
constexpr int64_t kMaxComparisons = 100'000'000;

int64_t index_of(const Value& value) {
  const int64_t index = value.as_int();
  if (index < 0) throw CorruptError({}, "is negative: " + std::to_string(index));
  return index;
}

Shape checked_shape(const Value& value) {
  Shape shape = shape_from_pickle(value);
  numel(shape);  // throws if it does not fit
  return shape;
}

Where below(const Where& where, const std::string& key) {
  Where inner = where;
  inner.member += (inner.member.empty() || key.starts_with('[') ? "" : ".") + key;
  return inner;
}

template <typename Body>
auto field(const Value& mapping, std::string_view key, const Where& where, Body&& body) {
  const Value value = in_context(where, [&] { return mapping.at(key); });
  const Where place = below(where, std::string(key));
  return in_context(place, [&] { return body(value, place); });
}

std::pair<int64_t, Strides> read_address(const Value& value) {
  const auto parts = list_or_tuple(value);
  if (parts.size() != 2) {
    throw CorruptError({}, counted(parts.size(), "item") + " where [offset, strides] should be");
  }
  return {index_of(parts[0]), shape_from_pickle(parts[1])};
}

AffineLocations read_locations(const Value& list) {
  std::vector<int64_t> ranks;
  for (const Value& rank : list.as_sequence()) ranks.push_back(index_of(rank));
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return AffineLocations(std::move(ranks));
}

// The result of `read` for `value`, made once.
template <typename T, typename Read>
T read_once(std::map<const void*, T>& known, const Value& value, Read&& read) {
  const auto found = known.find(value.identity());
  if (found != known.end()) return found->second;
  return known.emplace(value.identity(), read()).first->second;
}

AffinePiece read_piece(const Value& entry, const Where& where, KnownAffine& known) {
  AffinePiece piece;
  piece.shape =
      field(entry, "shape", where, [](const Value& v, const Where&) { return checked_shape(v); });
  std::tie(piece.source_offset, piece.source_strides) =
      field(entry, "source", where, [](const Value& v, const Where&) { return read_address(v); });
  std::tie(piece.dest_offset, piece.dest_strides) =
      field(entry, "dest", where, [](const Value& v, const Where&) { return read_address(v); });
  if (piece.source_strides.size() != piece.shape.size() ||
      piece.dest_strides.size() != piece.shape.size()) {
    throw CorruptError(where, "has " + counted(piece.shape.size(), "size") + " but " +
                                  std::to_string(piece.source_strides.size()) + " and " +
                                  counted(piece.dest_strides.size(), "stride"));
  }
  field(entry, "locations", where, [&](const Value& v, const Where&) {
    piece.locations = read_once(known.locations, v, [&] { return read_locations(v); });
  });
  if (const auto scale = in_context(where, [&] { return entry.find("scale"); })) {
    in_context(below(where, "scale"), [&] { piece.scale = scale->as_real(); });
    if (piece.scale == 0 || !std::isfinite(piece.scale)) {
      throw CorruptError(below(where, "scale"), "is zero or not finite");
    }
  }
  return piece;
}

// An int, or its digits: JSON has only texts as keys.
int64_t rank_of(const Value& key) {
  if (!key.is(Kind::string)) return index_of(key);
  const std::string_view text = key.as_string();
  int64_t rank = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (error != std::errc() || end != text.data() + text.size() || rank < 0) {
    throw CorruptError({}, "'" + std::string(text) + "' is not a rank");
  }
  return rank;
}

// Unlike Value::as_int, no bools; as autoep_affine.py _positive_int.
int64_t positive_int(const Value& value) {
  if (!value.is(Kind::integer) || value.as_int() <= 0) {
    throw CorruptError({}, describe(value) + " where a positive int was expected");
  }
  return value.as_int();
}

SharedList<AffinePiece> read_pieces(const Value& pieces, const Where& where, KnownAffine& known) {
  std::vector<AffinePiece> read;
  for (const Value& piece : list_or_tuple(pieces)) {
    read.push_back(read_piece(piece, below(where, "[" + std::to_string(read.size()) + "]"), known));
  }
  return read;
}

SharedList<AffineMap::Rank> read_ranks(const Value& by_rank, const Where& where,
                                       KnownAffine& known) {
  const auto& items = by_rank.as_dict().items;
  std::vector<std::optional<AffineMap::Rank>> found(items.size());
  for (const auto& [key, value] : items) {
    const int64_t number = in_context(where, [&, &rank_key = key] { return rank_of(rank_key); });
    const Where at = below(where, "[" + std::to_string(number) + "]");
    if (static_cast<uint64_t>(number) >= found.size()) {
      throw CorruptError(at, "is one of " + counted(items.size(), "rank"));
    }
    if (found[static_cast<size_t>(number)]) throw CorruptError(at, "appears twice");
    AffineMap::Rank rank;
    rank.shard_shape = field(value, "shard_shape", at,
                             [](const Value& v, const Where&) { return checked_shape(v); });
    field(value, "pieces", at, [&](const Value& pieces, const Where& place) {
      rank.pieces =
          read_once(known.pieces, pieces, [&] { return read_pieces(pieces, place, known); });
    });
    found[static_cast<size_t>(number)] = std::move(rank);
  }
  if (found.empty()) throw CorruptError({}, "is empty");
  std::vector<AffineMap::Rank> ranks;
  for (auto& rank : found) ranks.push_back(std::move(*rank));
  return ranks;
}

}  // namespace

AffineMap AffineMap::read(const Value& entry, const Where& where, KnownAffine& known) {
  AffineMap map;
  map.logical_shape = field(entry, "logical_shape", where,
                            [](const Value& v, const Where&) { return checked_shape(v); });
  field(entry, "ranks", where, [&](const Value& by_rank, const Where& place) {
    map.ranks = read_once(known.ranks, by_rank, [&] { return read_ranks(by_rank, place, known); });
  });
  return map;
}

AffineMap AffineMap::read(const Value& entry, const Where& where) {
  KnownAffine known;
  return read(entry, where, known);
}

AffineMap AffineMap::from_expert_placement(const Value& placement, const Shape& logical_shape,
                                           const Where& where) {
  const int64_t version =
      field(placement, "version", where, [](const Value& v, const Where&) { return v.as_int(); });
  if (version != 1) {
    throw UnsupportedError(below(where, "version"), "is " + std::to_string(version) + ", not 1");
  }
  const auto positive = [&](std::string_view key) {
    return field(placement, key, where,
                 [](const Value& v, const Where&) { return positive_int(v); });
  };
  const int64_t num_experts = positive("num_experts");
  const int64_t ep_size = positive("ep_size");

  std::map<int64_t, std::vector<int64_t>> holders;  // expert -> ranks
  std::vector<std::optional<std::vector<int64_t>>> experts_of;
  field(placement, "ranks", where, [&](const Value& by_rank, const Where& place) {
    const auto entries = list_or_tuple(by_rank);
    if (static_cast<uint64_t>(ep_size) != entries.size()) {
      throw CorruptError({}, "has " + counted(entries.size(), "entry", "entries") +
                                 " for ep_size " + std::to_string(ep_size));
    }
    experts_of.resize(entries.size());
    for (size_t i = 0; i < entries.size(); ++i) {
      const Where at = below(place, "[" + std::to_string(i) + "]");
      const int64_t rank = field(entries[i], "rank", at, [&](const Value& v, const Where&) {
        if (!v.is(Kind::integer) || v.as_int() < 0 || v.as_int() >= ep_size) {
          throw CorruptError({}, "is not a rank below " + std::to_string(ep_size));
        }
        return v.as_int();
      });
      auto& experts = experts_of[static_cast<size_t>(rank)];
      if (experts) throw CorruptError(at, "rank " + std::to_string(rank) + " appears twice");
      experts.emplace();
      field(entries[i], "experts", at, [&](const Value& list, const Where&) {
        for (const Value& v : list_or_tuple(list)) {
          if (!v.is(Kind::integer) || v.as_int() < 0 || v.as_int() >= num_experts) {
            throw CorruptError({}, "has an expert that is none of " + std::to_string(num_experts));
          }
          std::vector<int64_t>& of = holders[v.as_int()];
          if (!of.empty() && of.back() == rank) {
            throw CorruptError({}, "has expert " + std::to_string(v.as_int()) + " twice");
          }
          of.push_back(rank);
          experts->push_back(v.as_int());
        }
      });
    }
  });
  if (holders.size() != static_cast<uint64_t>(num_experts)) {
    int64_t missing = 0;
    while (holders.contains(missing)) ++missing;
    throw CorruptError(where, "has no rank for expert " + std::to_string(missing));
  }
  std::map<int64_t, AffineLocations> locations;  // by expert
  for (auto& [expert, ranks] : holders) {
    std::sort(ranks.begin(), ranks.end());
    locations.emplace(expert, AffineLocations(ranks));
  }

  if (logical_shape.empty() || logical_shape[0] != num_experts) {
    throw InconsistentError(where, "places " + counted(num_experts, "expert") +
                                       ", but the parameter's shape is " + to_text(logical_shape));
  }
  numel(logical_shape);
  const Strides strides = contiguous_strides(logical_shape);
  int64_t per_expert = 1;
  for (size_t i = 1; i < logical_shape.size(); ++i) per_expert *= logical_shape[i];

  AffineMap map;
  map.logical_shape = logical_shape;
  std::vector<Rank> made;
  for (const auto& held : experts_of) {
    const std::vector<int64_t>& experts = *held;
    Rank rank;
    rank.shard_shape = logical_shape;
    rank.shard_shape[0] = static_cast<int64_t>(experts.size());
    std::vector<AffinePiece> pieces;
    for (size_t begin = 0, end; begin < experts.size(); begin = end) {
      const std::vector<int64_t>& first = holders[experts[begin]];
      end = begin + 1;
      while (end < experts.size() && first.size() == 1 && experts[end] == experts[end - 1] + 1 &&
             holders[experts[end]] == first) {
        ++end;
      }
      AffinePiece piece;
      piece.shape = logical_shape;
      piece.shape[0] = static_cast<int64_t>(end - begin);
      piece.source_offset = experts[begin] * per_expert;
      piece.source_strides = strides;
      piece.dest_offset = static_cast<int64_t>(begin) * per_expert;
      piece.dest_strides = strides;
      piece.locations = locations.at(experts[begin]);
      pieces.push_back(std::move(piece));
    }
    rank.pieces = std::move(pieces);
    made.push_back(std::move(rank));
  }
  map.ranks = std::move(made);
  return map;
}

namespace {

struct Box {
  Shape begin, size;
  bool operator==(const Box&) const = default;
  auto operator<=>(const Box&) const = default;
  int64_t end(size_t dim) const { return begin[dim] + size[dim]; }
};

bool overlap(const Box& a, const Box& b) {
  for (size_t dim = 0; dim < a.begin.size(); ++dim) {
    if (a.end(dim) <= b.begin[dim] || b.end(dim) <= a.begin[dim]) return false;
  }
  return true;
}

std::string place_of(const Box& box) {
  return "at " + to_text(box.begin) + " of shape " + to_text(box.size);
}

// The box of a row-major tensor of shape `tensor` that the piece is, its elements in the same
// order; nullopt if it is none. Neighbouring dimensions of the tensor may be one of the piece.
// Throws CorruptError if the piece leaves the tensor. Neither is empty.
std::optional<Box> box_of(const Shape& tensor, const Shape& shape, int64_t offset,
                          const Strides& piece_strides) {
  const auto total = static_cast<uint64_t>(numel(tensor));
  auto last = static_cast<uint64_t>(offset);
  for (size_t i = 0; i < shape.size(); ++i) {
    last = checked_add(last, checked_mul(static_cast<uint64_t>(shape[i] - 1),
                                         static_cast<uint64_t>(piece_strides[i])));
  }
  if (last >= total) {
    throw CorruptError(
        {}, "reaches element " + std::to_string(last) + " of a tensor of shape " + to_text(tensor));
  }

  const Strides strides = contiguous_strides(tensor);
  Box box{Shape(tensor.size(), 0), Shape(tensor.size(), 1)};
  std::vector<size_t> dims;  // those that are there to be stepped along
  for (size_t dim = 0; dim < tensor.size(); ++dim) {
    if (tensor[dim] <= 1) continue;
    dims.push_back(dim);
    box.begin[dim] = offset / strides[dim] % tensor[dim];
  }
  size_t next = 0;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 1) continue;
    size_t at = next;
    while (at < dims.size() && strides[dims[at]] != piece_strides[i]) ++at;
    if (at == dims.size()) return std::nullopt;
    const size_t after = at + 1;
    int64_t left = shape[i];
    while (left > tensor[dims[at]]) {
      const size_t whole = dims[at];
      if (left % tensor[whole] != 0 || box.begin[whole] != 0 || at == next) return std::nullopt;
      box.size[whole] = tensor[whole];
      left /= tensor[whole];
      --at;
    }
    box.size[dims[at]] = left;
    if (box.end(dims[at]) > tensor[dims[at]]) return std::nullopt;
    next = after;
  }
  return box;
}

// Boxes taken apart by cuts that go from edge to edge. A leaf is one box.
struct Cut {
  size_t dim = 0;
  std::vector<Cut> parts;
  size_t box = 0;
};

// Every leaf fills its part of the region: this proves that the boxes tile it.
class Cutter {
 public:
  // `boxes` lie inside `shape` and are not empty; `what` they tile, for messages.
  Cutter(const std::vector<Box>& boxes, const Shape& shape, std::string what)
      : boxes_(boxes), what_(std::move(what)), shape_(shape) {}

  Cut cut() {
    std::vector<size_t> all(boxes_.size());
    std::iota(all.begin(), all.end(), size_t{0});
    if (all.empty()) fail_gap(0);
    return cut(all, Box{Shape(shape_.size(), 0), shape_}, 0);
  }

 private:
  Cut cut(std::span<size_t> ids, const Box& region, int depth) {
    if (ids.size() == 1) {
      if (boxes_[ids[0]] != region) fail_gap(ids[0]);
      return {.dim = 0, .parts = {}, .box = ids[0]};
    }
    if (depth == kMaxCutDepth) {
      throw UnsupportedError({}, "the pieces of " + what_ + " are nested too deeply");
    }
    for (size_t dim = 0; dim < region.size.size(); ++dim) {
      if (region.size[dim] <= 1) continue;
      std::sort(ids.begin(), ids.end(),
                [&](size_t a, size_t b) { return boxes_[a].begin[dim] < boxes_[b].begin[dim]; });
      std::vector<size_t> begins{0};
      int64_t reached = boxes_[ids[0]].end(dim);
      for (size_t i = 1; i < ids.size(); ++i) {
        if (boxes_[ids[i]].begin[dim] >= reached) begins.push_back(i);
        reached = std::max(reached, boxes_[ids[i]].end(dim));
      }
      if (begins.size() == 1) continue;
      begins.push_back(ids.size());
      Cut made{.dim = dim, .parts = {}, .box = 0};
      Box part = region;
      for (size_t i = 0; i + 1 < begins.size(); ++i) {
        const int64_t end =
            begins[i + 1] == ids.size() ? region.end(dim) : boxes_[ids[begins[i + 1]]].begin[dim];
        part.size[dim] = end - part.begin[dim];
        made.parts.push_back(
            cut(ids.subspan(begins[i], begins[i + 1] - begins[i]), part, depth + 1));
        part.begin[dim] = end;
      }
      return made;
    }
    fail_no_cut(ids, region);
  }

  [[noreturn]] void fail_gap(size_t box) const {
    throw CorruptError({}, "the pieces leave a gap in " + what_ + " of shape " + to_text(shape_) +
                               (boxes_.empty() ? "" : ", next to that " + place_of(boxes_[box])));
  }

  // Says whether it is the pieces' fault or ours.
  [[noreturn]] void fail_no_cut(std::span<size_t> ids, const Box& region) const {
    std::sort(ids.begin(), ids.end(),
              [&](size_t a, size_t b) { return boxes_[a].begin < boxes_[b].begin; });
    int64_t compared = 0;
    uint64_t covered = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const Box& a = boxes_[ids[i]];
      covered = checked_add(covered, static_cast<uint64_t>(numel(a.size)));
      for (size_t j = i + 1; j < ids.size() && boxes_[ids[j]].begin[0] < a.end(0); ++j) {
        if (++compared > kMaxComparisons) break;
        if (overlap(a, boxes_[ids[j]])) {
          throw CorruptError({}, "the pieces " + place_of(a) + " and " + place_of(boxes_[ids[j]]) +
                                     " of " + what_ + " overlap");
        }
      }
    }
    if (compared <= kMaxComparisons && covered != static_cast<uint64_t>(numel(region.size))) {
      fail_gap(ids[0]);
    }
    throw UnsupportedError({}, "the pieces of " + what_ +
                                   " interlock: no straight cut "
                                   "separates those " +
                                   place_of(region));
  }

  const std::vector<Box>& boxes_;
  std::string what_;
  const Shape& shape_;
};

std::string name_of(size_t rank, size_t piece) {
  return "piece " + std::to_string(piece) + " of rank " + std::to_string(rank);
}

template <typename Ranks>
std::string list_of(const Ranks& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace

class AffineAssembler {
 public:
  explicit AffineAssembler(const AffineMap& map) : map_(map) {
    for (size_t rank = 0; rank < map.ranks.size(); ++rank) add_rank(rank);
    std::sort(pieces_.begin(), pieces_.end(), [](const Placed& a, const Placed& b) {
      return std::tie(a.source, a.rank, a.index) < std::tie(b.source, b.rank, b.index);
    });
    for (size_t i = 0; i < pieces_.size(); ++i) {
      if (i == 0 || pieces_[i].source != pieces_[i - 1].source) {
        boxes_.push_back(pieces_[i].source);
        begins_.push_back(i);
      }
    }
    begins_.push_back(pieces_.size());
    for (size_t box = 0; box < boxes_.size(); ++box) check_locations(box);
  }

  AffineAssembly::Region root() const {
    if (numel(map_.logical_shape) == 0) {
      AffineAssembly::Region empty;
      empty.shape = map_.logical_shape;
      return empty;
    }
    return region(Cutter(boxes_, map_.logical_shape, "the tensor").cut());
  }

 private:
  struct Placed {
    size_t rank, index;
    Box source, dest;
  };

  void add_rank(size_t rank) {
    const AffineMap::Rank& held = map_.ranks[rank];
    std::vector<Box> dest;
    for (size_t i = 0; i < held.pieces.size(); ++i) {
      const AffinePiece& piece = held.pieces[i];
      if (piece.scale != 1) {
        throw UnsupportedError({}, name_of(rank, i) + " is scaled by " +
                                       std::to_string(piece.scale) + " in the shard");
      }
      if (numel(piece.shape) == 0) continue;
      const auto place = [&](const Shape& tensor, int64_t offset, const Strides& strides,
                             const char* which) {
        try {
          if (auto box = box_of(tensor, piece.shape, offset, strides)) return *box;
        } catch (const CorruptError& error) {
          throw CorruptError({}, name_of(rank, i) + ": in the " + which + ": " + error.message());
        }
        throw UnsupportedError({}, name_of(rank, i) + ", of shape " + to_text(piece.shape) +
                                       ", is not a box of the " + which + " of shape " +
                                       to_text(tensor));
      };
      pieces_.push_back(
          {rank, i, place(map_.logical_shape, piece.source_offset, piece.source_strides, "tensor"),
           place(held.shard_shape, piece.dest_offset, piece.dest_strides, "shard")});
      dest.push_back(pieces_.back().dest);
    }
    if (numel(held.shard_shape) > 0) {
      Cutter(dest, held.shard_shape, "the shard of rank " + std::to_string(rank)).cut();
    }
  }

  void check_locations(size_t box) const {
    std::vector<int64_t> holders;
    for (size_t i = begins_[box]; i < begins_[box + 1]; ++i) {
      const auto rank = static_cast<int64_t>(pieces_[i].rank);
      if (holders.empty() || holders.back() != rank) holders.push_back(rank);
    }
    const std::vector<int64_t>* right = nullptr;  // compared before
    for (size_t i = begins_[box]; i < begins_[box + 1]; ++i) {
      const Placed& piece = pieces_[i];
      const std::vector<int64_t>& saved =
          map_.ranks[piece.rank].pieces[piece.index].locations.ranks();
      if (&saved == right) continue;
      right = &saved;
      if (saved != holders) {
        throw CorruptError({}, name_of(piece.rank, piece.index) + " is held by " +
                                   list_of(holders) + ", but its `locations` differ");
      }
    }
  }

  AffineAssembly::Region region(const Cut& cut) const {
    AffineAssembly::Region made;
    if (!cut.parts.empty()) {
      made.dim = cut.dim;
      for (const Cut& part : cut.parts) made.parts.push_back(region(part));
      return made;
    }
    made.shape = boxes_[cut.box].size;
    for (size_t i = begins_[cut.box]; i < begins_[cut.box + 1]; ++i) {
      made.holders.push_back({pieces_[i].rank, pieces_[i].dest.begin, pieces_[i].dest.size});
    }
    return made;
  }

  const AffineMap& map_;
  std::vector<Placed> pieces_;  // by source, then by rank
  std::vector<Box> boxes_;      // the different ones of the sources
  std::vector<size_t> begins_;  // of each box's pieces in pieces_, and the end
};

AffineAssembly::AffineAssembly(const AffineMap& map) : shape_(map.logical_shape) {
  for (const AffineMap::Rank& rank : map.ranks) shard_shapes_.push_back(rank.shard_shape);
  if (shard_shapes_.empty()) throw CorruptError({}, "an affine map without ranks");
  root_ = AffineAssembler(map).root();
}

std::optional<TpCut> AffineAssembly::cut() const {
  const size_t ranks = shard_shapes_.size();
  if (root_.parts.empty()) {
    if (root_.holders.size() != ranks || shape_ != shard_shapes_.front()) return std::nullopt;
    return TpCut::whole();
  }
  const size_t dim = root_.dim;
  std::vector<TpPart> parts;
  std::vector<int64_t> reached(ranks, 0);  // in each shard
  const auto place = [&](const Holder& holder, const Region& region) {
    const bool is_next = holder.size == region.shape && holder.begin[dim] == reached[holder.rank];
    reached[holder.rank] += region.shape[dim];
    return is_next;
  };
  for (size_t i = 0; i < root_.parts.size();) {
    TpPart part;
    const Region& first = root_.parts[i];
    if (!first.parts.empty()) return std::nullopt;
    part.on_every_rank = ranks > 1 && first.holders.size() == ranks;
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (i >= root_.parts.size()) return std::nullopt;
      const Region& region = root_.parts[i];
      const size_t holder = part.on_every_rank ? rank : 0;
      if (!region.parts.empty() || region.holders.size() != (part.on_every_rank ? ranks : 1) ||
          region.holders[holder].rank != rank || !place(region.holders[holder], region)) {
        return std::nullopt;
      }
      part.widths.push_back(region.shape[dim]);
      if (!part.on_every_rank) ++i;
    }
    if (part.on_every_rank) ++i;
    parts.push_back(std::move(part));
  }
  return TpCut(dim, shape_.size(), std::move(parts));
}

TensorSource AffineAssembly::merge(const std::vector<TensorSource>& shards,
                                   std::string_view what) const {
  bool fits = shards.size() == shard_shapes_.size();
  for (size_t i = 0; fits && i < shards.size(); ++i) fits = shards[i].shape() == shard_shapes_[i];
  if (!fits) throw InconsistentError({}, "different shards than those of the affine map");
  return merge(root_, shards, what);
}

TensorSource AffineAssembly::merge(const Region& region, const std::vector<TensorSource>& shards,
                                   std::string_view what) const {
  if (!region.parts.empty()) {
    std::vector<TensorSource> parts;
    parts.reserve(region.parts.size());
    for (const Region& part : region.parts) parts.push_back(merge(part, shards, what));
    return TensorSource::cat(static_cast<int64_t>(region.dim), std::move(parts));
  }
  // Only an empty tensor has no holders, and then its shards are empty too.
  if (region.holders.empty()) return shards.front().view(region.shape);
  std::vector<TensorSource> copies;
  std::vector<size_t> ranks;
  for (const Holder& holder : region.holders) {
    TensorSource copy = shards[holder.rank];
    for (size_t dim = 0; dim < holder.size.size(); ++dim) {
      if (holder.size[dim] == copy.shape()[dim]) continue;
      copy = copy.narrow(static_cast<int64_t>(dim), holder.begin[dim], holder.size[dim]);
    }
    if (copy.shape() != region.shape) copy = copy.view(region.shape);
    copies.push_back(std::move(copy));
    ranks.push_back(holder.rank);
  }
  return TensorSource::same(std::move(copies), std::string(what) + " " + list_of(ranks));
}

}  // namespace dsckpt
