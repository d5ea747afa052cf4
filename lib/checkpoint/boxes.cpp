#include "checkpoint/boxes.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/text.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

// The boxes of one tensor. Meshes make a grid, which takes as many as there are boxes.
constexpr size_t kMostParts = size_t{1} << 22;

std::string box_text(const Shape& offsets, const Shape& sizes) {
  return to_text(sizes) + " at " + to_text(offsets);
}

void check_inside(const TensorBox& box, const Shape& shape) {
  const Shape& sizes = box.value.shape();
  for (size_t d = 0; d < shape.size(); ++d) {
    if (box.offsets[d] >= 0 && box.offsets[d] <= shape[d] &&
        sizes[d] <= shape[d] - box.offsets[d]) {
      continue;
    }
    throw InconsistentError({}, "the chunk of " + box_text(box.offsets, sizes) +
                                    " reaches out of the tensor, which has shape " +
                                    to_text(shape));
  }
}

class BoxJoiner {
 public:
  explicit BoxJoiner(std::vector<TensorBox> boxes) : boxes_(std::move(boxes)) {}

  TensorSource join(const Shape& shape) {
    std::vector<Part> all;
    for (uint32_t i = 0; i < boxes_.size(); ++i) all.push_back({i, boxes_[i].value});
    corner_ = Shape(shape.size(), 0);
    sizes_ = shape;
    return region(0, std::move(all));
  }

 private:
  // The part of a box within the region: it is cut to that in the dimensions before the one at
  // hand.
  struct Part {
    uint32_t box;
    TensorSource value;
  };

  int64_t begin_of(const Part& part, size_t dim) const { return boxes_[part.box].offsets[dim]; }
  int64_t end_of(const Part& part, size_t dim) const {
    return begin_of(part, dim) + boxes_[part.box].value.shape()[dim];
  }

  // The region at `corner_` of `sizes_`, whose dimensions before `dim` all `parts` fill.
  TensorSource region(size_t dim, std::vector<Part> parts) {
    if (dim == sizes_.size()) return only_one(parts);
    const int64_t begin = corner_[dim];
    const int64_t end = begin + sizes_[dim];
    std::vector<int64_t> cuts{begin, end};
    for (const Part& part : parts) {
      for (const int64_t cut : {begin_of(part, dim), end_of(part, dim)}) {
        if (cut > begin && cut < end) cuts.push_back(cut);
      }
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::sort(parts.begin(), parts.end(),
              [&](const Part& a, const Part& b) { return begin_of(a, dim) < begin_of(b, dim); });
    std::vector<TensorSource> slabs;
    std::vector<Part> open;  // those that reach into the slab
    size_t next = 0;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      std::erase_if(open, [&](const Part& part) { return end_of(part, dim) <= cuts[i]; });
      while (next < parts.size() && begin_of(parts[next], dim) <= cuts[i]) {
        open.push_back(parts[next++]);
      }
      slabs.push_back(slab(dim, cuts[i], cuts[i + 1], open));
    }
    corner_[dim] = begin;
    sizes_[dim] = end - begin;
    return slabs.size() == 1 ? std::move(slabs.front())
                             : TensorSource::cat(static_cast<int64_t>(dim), std::move(slabs));
  }

  TensorSource slab(size_t dim, int64_t begin, int64_t end, const std::vector<Part>& open) {
    corner_[dim] = begin;
    sizes_[dim] = end - begin;
    std::vector<Part> parts;
    for (const Part& part : open) {
      const bool is_whole = begin_of(part, dim) == begin && end_of(part, dim) == end;
      parts.push_back(
          {part.box, is_whole ? part.value
                              : part.value.narrow(static_cast<int64_t>(dim),
                                                  begin - begin_of(part, dim), end - begin)});
      if (++parts_ > kMostParts) {
        throw UnsupportedError({}, "its chunks lie so that no grid of at most " +
                                       counted(kMostParts, "part") + " has them");
      }
    }
    if (parts.empty()) only_one(parts);
    return region(dim + 1, std::move(parts));
  }

  TensorSource only_one(const std::vector<Part>& parts) const {
    if (parts.size() == 1) return parts.front().value;
    if (parts.empty()) {
      throw InconsistentError({}, "no chunk has the elements " + box_text(corner_, sizes_));
    }
    const TensorBox& a = boxes_[parts[0].box];
    const TensorBox& b = boxes_[parts[1].box];
    throw InconsistentError({}, "the chunks of " + box_text(a.offsets, a.value.shape()) + " and " +
                                    box_text(b.offsets, b.value.shape()) + " overlap");
  }

  std::vector<TensorBox> boxes_;
  Shape corner_;
  Shape sizes_;
  size_t parts_ = 0;
};

}  // namespace

TensorSource join_boxes(DType dtype, const Shape& shape, std::vector<TensorBox> boxes) {
  for (const TensorBox& box : boxes) check_inside(box, shape);
  std::erase_if(boxes, [](const TensorBox& box) { return box.value.numel() == 0; });
  if (numel(shape) == 0) return TensorSource::stored({}, dtype, shape);
  return BoxJoiner(std::move(boxes)).join(shape);
}

}  // namespace dsckpt
