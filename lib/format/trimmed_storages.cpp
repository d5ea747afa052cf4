#include "format/trimmed_storages.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/bytes.h"
#include "dsckpt/error.h"
#include "format/tensors_in.h"
#include "format/torch_legacy.h"

namespace dsckpt {
using pickle::Value;
namespace {

// A tensor and its range in the storage.
struct View {
  Value arguments;
  TensorInfo info;
  uint64_t begin = 0;  // bytes from the start of the storage
  uint64_t end = 0;    // equals begin if there are no elements

  bool same_place(const View& other) const {
    return info.dtype == other.info.dtype && begin == other.begin &&
           info.shape == other.info.shape && info.strides == other.info.strides;
  }
};

View view_of(const TorchArchive& archive, const Value& tensor) {
  View view{.arguments = TorchArchive::view_arguments(tensor), .info = archive.info(tensor)};
  const uint64_t item = size_of(view.info.dtype);
  // info() has checked that this lies inside the storage.
  view.begin = static_cast<uint64_t>(view.info.storage_offset) * item;
  view.end = view.begin;
  if (numel(view.info.shape) == 0) return view;
  uint64_t last = 0;
  for (size_t i = 0; i < view.info.shape.size(); ++i) {
    last +=
        static_cast<uint64_t>(view.info.shape[i] - 1) * static_cast<uint64_t>(view.info.strides[i]);
  }
  view.end += (last + 1) * item;
  return view;
}

// The elements of a tensor in memory order, without the bytes between them.
struct Dense {
  Shape shape;      // of the dimensions with steps, the longest steps first
  Strides strides;  // of the same dimensions
  Strides packed;   // of all dimensions, after the bytes between are removed
};

// Returns nullopt if no bytes lie between elements, or if elements share memory.
std::optional<Dense> dense(const TensorInfo& info) {
  std::vector<size_t> dims;
  for (size_t i = 0; i < info.shape.size(); ++i) {
    if (info.shape[i] > 1 && info.strides[i] > 0) dims.push_back(i);
  }
  std::stable_sort(dims.begin(), dims.end(),
                   [&](size_t a, size_t b) { return info.strides[a] > info.strides[b]; });
  Dense result{.shape = {}, .strides = {}, .packed = info.strides};
  int64_t span = 1;
  int64_t count = 1;
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
    if (info.strides[*dim] < span) return std::nullopt;
    result.packed[*dim] = count;
    span += info.strides[*dim] * (info.shape[*dim] - 1);
    count *= info.shape[*dim];
  }
  if (span == count) return std::nullopt;
  for (const size_t dim : dims) {
    result.shape.push_back(info.shape[dim]);
    result.strides.push_back(info.strides[dim]);
  }
  return result;
}

// A storage, and the tensors that are known to lie in it.
struct Stored {
  TensorSource data;
  std::vector<View> views = {};
  bool whole = false;

  // Returns the number of bytes that all offsets must be multiples of.
  uint64_t alignment() const {
    uint64_t most = size_of(data.dtype());
    for (const View& view : views) most = std::max<uint64_t>(most, size_of(view.info.dtype));
    return most;
  }
};

class Trimmer {
 public:
  Trimmer(const std::string& key, const Stored& stored, ImportChanges& changes)
      : key_(key), stored_(stored), changes_(changes), alignment_(stored.alignment()) {
    for (const View& view : stored.views)
      (view.begin == view.end ? empty_ : views_).push_back(&view);
    std::stable_sort(views_.begin(), views_.end(),
                     [](const View* a, const View* b) { return a->begin < b->begin; });
  }

  // Returns the number of remaining bytes.
  uint64_t trim() {
    for (size_t first = 0; first < views_.size();) {
      const size_t last = end_of_part(first);
      add_part({views_.data() + first, last - first});
      first = last;
    }
    if (size_ == stored_.data.nbytes()) return size_;
    changes_.storages.emplace(key_, pieces_.empty() ? stored_.data.narrow(0, 0, 0)
                                                    : TensorSource::cat(0, std::move(pieces_)));
    for (const View* view : empty_) moved_.push_back({view->arguments, 0, view->info.strides});
    std::move(moved_.begin(), moved_.end(), std::back_inserter(changes_.views));
    return size_;
  }

 private:
  using Views = std::span<const View* const>;

  uint64_t begin_of(const View& view) const { return view.begin / alignment_ * alignment_; }
  uint64_t end_of(const View& view) const {
    return std::min(round_up(view.end, alignment_), stored_.data.nbytes());
  }

  // Returns the first view after those that overlap with view `first` or with each other.
  size_t end_of_part(size_t first) const {
    uint64_t end = end_of(*views_[first]);
    size_t last = first + 1;
    for (; last < views_.size() && begin_of(*views_[last]) < end; ++last) {
      end = std::max(end, end_of(*views_[last]));
    }
    return last;
  }

  void add_part(Views part) {
    const View& front = *part.front();
    const uint64_t begin = begin_of(front);
    const bool alone = std::all_of(part.begin(), part.end(),
                                   [&](const View* view) { return view->same_place(front); });
    const bool plain = alignment_ == size_of(stored_.data.dtype());
    const auto packed = alone && plain ? dense(front.info) : std::nullopt;
    uint64_t end = begin;
    for (const View* view : part) {
      end = std::max(end, end_of(*view));
      const uint64_t at = size_ + view->begin - begin;
      moved_.push_back({view->arguments, static_cast<int64_t>(at / size_of(view->info.dtype)),
                        packed ? packed->packed : view->info.strides});
    }
    pieces_.push_back(packed ? rows_of(*packed, front) : bytes_of(begin, end));
    size_ += pieces_.back().nbytes();
  }

  TensorSource bytes_of(uint64_t begin, uint64_t end) const {
    const uint64_t item = size_of(stored_.data.dtype());
    return stored_.data.narrow(0, static_cast<int64_t>(begin / item),
                               static_cast<int64_t>((end - begin) / item));
  }

  TensorSource rows_of(const Dense& packed, const View& view) const {
    const Extent whole = stored_.data.as_strided().value().extent;
    return TensorSource::stored({whole.file, whole.offset + view.begin, view.end - view.begin},
                                view.info.dtype, packed.shape, packed.strides)
        .flatten();
  }

  const std::string& key_;
  const Stored& stored_;
  ImportChanges& changes_;
  uint64_t alignment_;
  std::vector<const View*> views_;  // by begin
  std::vector<const View*> empty_;
  uint64_t size_ = 0;
  std::vector<TensorSource> pieces_;
  std::vector<ImportChanges::View> moved_;
};

// Finds the values that are dropped, and the tensors that remain in each storage.
class DroppedFinder {
 public:
  DroppedFinder(const TorchArchive& archive, const Value& root, const std::vector<Value>& dropped)
      : archive_(archive), root_(root) {
    find_dropped(dropped);
    find_storages();
    find_views();
  }

  std::vector<Value> take_dropped() { return std::move(dropped_); }
  const std::map<std::string, Stored>& storages() const { return storages_; }

 private:
  void find_dropped(const std::vector<Value>& dropped) {
    // A parameter may wrap a tensor that the archive also uses by itself.
    const auto data_of = [](const Value& tensor) {
      return TorchArchive::view_arguments(tensor).identity();
    };
    std::unordered_map<const void*, size_t> elsewhere;
    for (const FoundTensor& found : tensors_in(root_)) ++elsewhere[data_of(found.value)];
    for (const Value& tensor : dropped) --elsewhere[data_of(tensor)];
    for (const Value& tensor : dropped) {
      if (elsewhere[data_of(tensor)] != 0) continue;
      if (without_.insert(tensor.identity()).second) dropped_.push_back(tensor);
    }
  }

  void find_storages() {
    for (const Value& persistent : persistent_values(root_, without_, &references_)) {
      TensorSource data = archive_.storage(persistent);
      const auto id = persistent.persistent_id().as_sequence();
      const std::string key(id[2].as_string());
      if (id.size() == 6 && !id[5].is_none()) {
        throw UnsupportedError({.member = "storage " + key},
                               "a view of a storage, as the legacy form may hold");
      }
      unknown_[key] += references_[persistent.identity()];
      const auto [found, is_new] = storages_.try_emplace(key, Stored{.data = data});
      if (!is_new && found->second.data.dtype() != data.dtype()) found->second.whole = true;
    }
  }

  void find_views() {
    std::unordered_set<const void*> seen;
    for (const FoundTensor& found : tensors_in(root_)) {
      if (without_.contains(found.value.identity())) continue;
      View view = view_of(archive_, found.value);
      if (!seen.insert(view.arguments.identity()).second) continue;
      // If anything else refers to a view's numbers, the view cannot be moved alone.
      if (references_[view.arguments.identity()] == 1) --unknown_[view.info.storage_key];
      storages_.at(view.info.storage_key).views.push_back(std::move(view));
    }
    for (auto& [key, stored] : storages_) stored.whole = stored.whole || unknown_[key] != 0;
  }

  const TorchArchive& archive_;
  const Value& root_;
  ValueSet without_;
  std::vector<Value> dropped_;
  std::unordered_map<const void*, size_t> references_;
  std::map<std::string, Stored> storages_;  // by key
  std::map<std::string, size_t> unknown_;   // references to each storage by anything but tensors
};

}  // namespace

TrimmedStorages trim_storages(const TorchArchive& archive, const Value& root,
                              const std::vector<Value>& dropped) {
  TrimmedStorages result;
  DroppedFinder finder(archive, root, dropped);
  result.changes.dropped = finder.take_dropped();
  for (const Extent& storage : archive.storages()) result.before += storage.size;
  for (const auto& [key, stored] : finder.storages()) {
    result.after +=
        stored.whole ? stored.data.nbytes() : Trimmer(key, stored, result.changes).trim();
  }
  return result;
}

}  // namespace dsckpt
