#include "inspect/byte_kinds.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/keyed_hash.h"
#include "checkpoint/module_entries.h"
#include "deepspeed/keys.h"
#include "deepspeed/shard_name.h"
#include "format/tensors_in.h"
#include "format/torch_legacy.h"

namespace dsckpt {
using pickle::Value;
namespace {

constexpr std::string_view kMasters = "fp32 masters";
constexpr std::string_view kWeights = "weights (";
constexpr std::string_view kTensors = "tensors (";
constexpr std::string_view kFrozen = "frozen parameters";
constexpr std::string_view kBuffers = "buffers";
constexpr std::string_view kPadding = "padding and copies";
constexpr std::string_view kLeft = "remains of lost tensors";
constexpr std::string_view kOther = "other tensors";
constexpr std::string_view kUnreachable = "unreachable";
constexpr std::string_view kRest = "pickles and headers";

std::vector<BytesOfKind> sorted_kinds(std::vector<BytesOfKind> kinds) {
  std::stable_sort(kinds.begin(), kinds.end(), [](const BytesOfKind& a, const BytesOfKind& b) {
    return kind_rank(a.kind) < kind_rank(b.kind);
  });
  return kinds;
}

// Sums of one file's bytes by kind.
class Sums {
 public:
  explicit Sums(const InputFile& file) : file_(file) {}

  // Adds `bytes` of the bytes in [begin, end), as if the range were compressed evenly.
  void add(std::string_view kind, uint64_t begin, uint64_t end, uint64_t bytes) {
    if (bytes == 0) return;
    Amount& amount = sums_[std::string(kind)];
    amount.bytes += bytes;
    amount.stored += file_.stored_bytes(begin, end - begin) * static_cast<double>(bytes) /
                     static_cast<double>(end - begin);
  }

  // Returns the sums. All other bytes of the file count as `rest`.
  FileBytes total(FileId id, std::string_view rest) const {
    Amount left{file_.size(), static_cast<double>(file_.stored_size())};
    std::vector<BytesOfKind> kinds;
    const auto put = [&](const std::string& kind, const Amount& amount) {
      const double stored = std::max(amount.stored, 0.0);
      kinds.push_back({kind, amount.bytes, static_cast<uint64_t>(std::llround(stored))});
    };
    for (const auto& [kind, amount] : sums_) {
      left.bytes -= std::min(left.bytes, amount.bytes);
      left.stored -= amount.stored;
      put(kind, amount);
    }
    if (left.bytes > 0) put(std::string(rest), left);
    return {id, file_.size(), file_.stored_size(), sorted_kinds(std::move(kinds))};
  }

 private:
  struct Amount {
    uint64_t bytes = 0;
    double stored = 0;
  };
  const InputFile& file_;
  std::map<std::string, Amount> sums_;
};

// Disjoint ranges of one file, sorted by begin.
class Covered {
 public:
  // Adds [begin, end) and returns how many of its bytes are new.
  uint64_t add(uint64_t begin, uint64_t end) {
    if (begin >= end) return 0;
    uint64_t fresh = end - begin;
    uint64_t first = begin;
    uint64_t last = end;
    auto at = ranges_.upper_bound(begin);
    if (at != ranges_.begin() && std::prev(at)->second >= begin) --at;
    while (at != ranges_.end() && at->first <= end) {
      fresh -= std::min(end, at->second) - std::max(begin, at->first);
      first = std::min(first, at->first);
      last = std::max(last, at->second);
      at = ranges_.erase(at);
    }
    ranges_[first] = last;
    return fresh;
  }

  // Returns how many bytes of [begin, end) are covered.
  uint64_t within(uint64_t begin, uint64_t end) const {
    uint64_t sum = 0;
    auto at = ranges_.upper_bound(begin);
    if (at != ranges_.begin()) --at;
    for (; at != ranges_.end() && at->first < end; ++at) {
      const uint64_t from = std::max(begin, at->first);
      const uint64_t to = std::min(end, at->second);
      if (to > from) sum += to - from;
    }
    return sum;
  }

 private:
  std::map<uint64_t, uint64_t> ranges_;
};

struct Piece {
  uint64_t begin;
  uint64_t end;
  const std::string* kind;
  size_t rank;  // of the kind
};

// A tensor of separate rows has a byte range for each row. Beyond so many rows it counts as the
// whole range around them.
constexpr uint64_t kMaxRows = 1 << 20;

// Limits for all tensors of a file together, since any number of them can be views of the same
// bytes.
class RangeLimits {
 public:
  explicit RangeLimits(const InputFiles& inputs) : inputs_(inputs) {}

  // Returns whether rows with so many elements may be walked.
  bool take_elements(FileId file, uint64_t count) { return take(left_in(file).elements, count); }
  bool take_ranges(FileId file, uint64_t count) { return take(left_in(file).ranges, count); }

 private:
  struct Left {
    uint64_t elements;
    uint64_t ranges;
  };

  static bool take(uint64_t& left, uint64_t count) {
    if (count > left) return false;
    left -= count;
    return true;
  }

  Left& left_in(FileId file) {
    const uint64_t size = inputs_[file].size();
    return left_.try_emplace(file, Left{kMaxRows + 2 * size, std::min(kMaxRows, size)})
        .first->second;
  }

  const InputFiles& inputs_;
  std::unordered_map<FileId, Left> left_;
};

// Calls `add` with the tensor's byte ranges in each file.
template <typename Add>
void each_range(const TensorSource& tensor, RangeLimits& limits, const Add& add) {
  const auto add_rows = [&](const Rows& rows, uint64_t count) {
    if (count > kMaxRows || rows.contiguous()) {
      add(rows.file, rows.offset, rows.span(count).end());
      return;
    }
    for (uint64_t row = 0; row < count; ++row) {
      add(rows.file, rows.begin_of(row), rows.begin_of(row) + rows.row_bytes);
    }
  };
  if (tensor.numel() == 0) return;
  bool is_known = true;
  const auto view = tensor.as_strided();
  if (view) {
    const FileId file = view->extent.file;
    const auto count = static_cast<uint64_t>(tensor.numel());
    // A tensor without gaps is one range, whatever the order of its elements.
    is_known = view->extent.size != tensor.nbytes() && count <= kMaxRows &&
               limits.take_elements(file, count);
  }
  if (is_known) {
    tensor.without_repeats().lower([&](const SourceRun& run) {
      for (const Rows& rows : run.sources()) {
        const uint64_t count = rows.contiguous() ? 1 : run.rows;
        is_known = is_known && (!view || limits.take_ranges(rows.file, count));
        if (is_known) add_rows(rows, run.rows);
      }
    });
  }
  if (!is_known) add(view->extent.file, view->extent.offset, view->extent.end());
}

std::string weights_of(DType dtype) {
  return std::string(kWeights) + std::string(torch_name(dtype)) + ")";
}

// Accounts for one file of torch.save. `pieces` are the ranges of the contents' tensors in it, the
// most important kinds first.
FileBytes account(const InputFiles& inputs, const TorchArchive& archive,
                  const std::vector<Piece>& pieces,
                  const KeyedMap<std::string_view, ParamKind>& kinds) {
  const InputFile& file = inputs[archive.file()];
  const auto name = parse_shard_name(file.path().filename().string());
  const bool has_flat_groups = name && name->kind == ShardName::Kind::optim_states;
  Sums sums(file);
  Covered covered;
  const auto add = [&](std::string_view kind, uint64_t begin, uint64_t end) {
    sums.add(kind, begin, end, covered.add(begin, end));
  };
  for (const Piece& piece : pieces) add(*piece.kind, piece.begin, piece.end);
  RangeLimits of_module(inputs);
  const auto claim = [&](const Value& value, const std::string& kind) {
    each_range(archive.tensor(value), of_module,
               [&](FileId, uint64_t begin, uint64_t end) { add(kind, begin, end); });
  };

  // The rank's own part of the module: copies and 16-bit weights that the contents do not use.
  const ModuleEntries module(archive.root().find_or_none(keys::kModule));
  for (const auto& [entry, value] : module.all()) {
    if (!TorchArchive::is_tensor(value)) continue;
    const TensorInfo info = archive.info(value);
    if (numel(info.shape) == 0) continue;  // a placeholder of stage 3
    const auto kind = kinds.find(entry);
    const bool is_weight = kind == kinds.end() || kind->second == ParamKind::trainable;
    claim(value, is_weight ? weights_of(info.dtype)
                           : std::string(kind->second == ParamKind::frozen ? kFrozen : kBuffers));
  }

  Covered reachable = covered;
  Covered flat;
  RangeLimits of_all(inputs);
  KeyedSet<std::string> viewed;  // keys of storages
  for (const FoundTensor& found : tensors_in(archive.root())) {
    TensorInfo info = archive.info(found.value);
    const bool has_elements = numel(info.shape) != 0;
    viewed.insert(std::move(info.storage_key));
    if (!has_elements) continue;
    const TensorSource tensor = archive.tensor(found.value);
    each_range(tensor, of_all, [&](FileId, uint64_t begin, uint64_t end) {
      reachable.add(begin, end);
      if (has_flat_groups && tensor.shape().size() == 1 && tensor.numel() > 1) flat.add(begin, end);
    });
  }
  // A tensor of an unreadable kind, quantised for example, counts with its whole storage.
  for (const Value& value : persistent_values(archive.root())) {
    const std::optional<std::string> key = storage_key(value);
    if (!key || viewed.contains(*key)) continue;
    if (const std::optional<Extent> storage = archive.bytes_of_storage(value)) {
      reachable.add(storage->offset, storage->end());
    }
  }
  for (const Extent& storage : archive.storages()) {
    const uint64_t reached = reachable.within(storage.offset, storage.end());
    const uint64_t known = covered.within(storage.offset, storage.end());
    const bool is_flat_group = flat.within(storage.offset, storage.end()) > 0;
    sums.add(is_flat_group ? kPadding : kOther, storage.offset, storage.end(), reached - known);
    sums.add(kUnreachable, storage.offset, storage.end(), storage.size - reached);
  }
  return sums.total(archive.file(), kRest);
}

// Accounts for a file with an archive for each value. Values outside the contents, such as unread
// states and settings, count as other tensors and values.
FileBytes account_items(const InputFiles& inputs, FileId id, const std::vector<Piece>& pieces) {
  Sums sums(inputs[id]);
  Covered covered;
  for (const Piece& piece : pieces) {
    sums.add(*piece.kind, piece.begin, piece.end, covered.add(piece.begin, piece.end));
  }
  if (const std::vector<FilePart>* parts = inputs.parts(id)) {
    for (const FilePart& part : *parts) {
      const TorchArchive archive = TorchArchive::open(inputs, part.extent);
      for (const Extent& storage : archive.storages()) {
        sums.add(kOther, storage.offset, storage.end(), covered.add(storage.offset, storage.end()));
      }
    }
  }
  return sums.total(id, kRest);
}

}  // namespace

size_t kind_rank(std::string_view kind) {
  constexpr std::array kAfterStates = {kFrozen, kBuffers,     kPadding, kLeft,
                                       kOther,  kUnreachable, kRest};
  if (kind == kMasters) return 0;
  if (kind.starts_with(kWeights) || kind.starts_with(kTensors)) return 2;
  const auto found = std::find(kAfterStates.begin(), kAfterStates.end(), kind);
  return found == kAfterStates.end() ? 1 : 3 + static_cast<size_t>(found - kAfterStates.begin());
}

std::string kind_of_bytes(const Contents& contents, const NamedTensor& tensor) {
  if (!tensor.kind) {
    return std::string(kTensors) + std::string(torch_name(tensor.value.dtype())) + ")";
  }
  if (!tensor.state.empty()) return tensor.state;
  switch (*tensor.kind) {
    case ParamKind::trainable: {
      // At stage 0 in fp32 the optimizer works on the module's own parameters.
      const CheckpointFacts& facts = contents.checkpoint()->facts();
      const bool no_masters = facts.zero_stage == 0 &&
                              facts.optimizer_wrapper == EngineWrapper::plain &&
                              contents.checkpoint()->files().params.empty();
      return no_masters ? weights_of(tensor.value.dtype()) : std::string(kMasters);
    }
    case ParamKind::frozen:
      return std::string(kFrozen);
    case ParamKind::buffer:
      return std::string(kBuffers);
  }
  return std::string(kOther);
}

std::vector<FileBytes> byte_kinds(const InputFiles& inputs, const Contents& contents) {
  KeyedMap<std::string_view, ParamKind> kinds;
  std::vector<std::string> names;
  names.reserve(contents.tensors().size());  // keeps the pointers of the pieces valid
  std::vector<std::vector<Piece>> pieces(inputs.size());
  RangeLimits limits(inputs);
  for (const NamedTensor& tensor : contents.tensors()) {
    if (tensor.kind) kinds.emplace(tensor.name, *tensor.kind);
    if (!tensor.alias_of.empty()) continue;
    names.push_back(kind_of_bytes(contents, tensor));
    const size_t rank = kind_rank(names.back());
    each_range(tensor.value, limits, [&](FileId file, uint64_t begin, uint64_t end) {
      pieces[file].push_back({begin, end, &names.back(), rank});
    });
  }
  for (std::vector<Piece>& some : pieces) {
    std::stable_sort(some.begin(), some.end(),
                     [](const Piece& a, const Piece& b) { return a.rank < b.rank; });
  }

  const std::vector<CheckpointFile>& archives = contents.archives();
  const bool damaged =
      contents.checkpoint() != nullptr && !contents.checkpoint()->incomplete().empty();
  std::vector<FileBytes> files(archives.size());
  tbb::parallel_for(size_t{0}, archives.size(), [&](size_t i) {
    const TorchArchive& archive = *archives[i].archive;
    files[i] = account(inputs, archive, pieces[archive.file()], kinds);
    if (!damaged) return;
    for (BytesOfKind& kind : files[i].kinds) {
      if (kind.kind == kPadding) kind.kind = kLeft;
    }
  });
  if (contents.checkpoint() != nullptr) {
    for (const SwapFile& file : contents.checkpoint()->files().swap) {
      Sums sums(inputs[file.id]);
      Covered covered;
      for (const Piece& piece : pieces[file.id]) {
        sums.add(*piece.kind, piece.begin, piece.end, covered.add(piece.begin, piece.end));
      }
      files.push_back(sums.total(file.id, kPadding));
    }
    for (const DataFile& file : contents.checkpoint()->files().data) {
      files.push_back(account_items(inputs, file.id, pieces[file.id]));
    }
  }
  for (const WeightsFile& file : contents.weights_files()) {
    if (!file.safetensors) continue;
    Sums sums(inputs[file.id]);
    for (const Piece& piece : pieces[file.id]) {
      sums.add(*piece.kind, piece.begin, piece.end, piece.end - piece.begin);
    }
    files.push_back(sums.total(file.id, kRest));
  }
  return files;
}

std::vector<BytesOfKind> total_kinds(const std::vector<FileBytes>& files) {
  std::map<std::string, BytesOfKind> sums;
  for (const FileBytes& file : files) {
    for (const BytesOfKind& kind : file.kinds) {
      BytesOfKind& sum = sums[kind.kind];
      sum = {kind.kind, sum.bytes + kind.bytes, sum.stored + kind.stored};
    }
  }
  std::vector<BytesOfKind> kinds;
  for (auto& [name, kind] : sums) kinds.push_back(std::move(kind));
  return sorted_kinds(std::move(kinds));
}

}  // namespace dsckpt
