#include "inspect/extents.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

#include "base/text.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

// Levenshtein's distance.
size_t edits(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({substituted, row[j] + 1, row[j - 1] + 1}));
    }
  }
  return row.back();
}

constexpr size_t kMaxCompared = 256;  // characters of a name

std::string nearest_name(const Contents& contents, const std::string& name) {
  std::string best;
  size_t fewest = name.size() / 2 + 1;
  for (const NamedTensor& tensor : contents.tensors()) {
    if (std::max(tensor.name.size(), name.size()) > kMaxCompared) continue;
    // "q_proj.weight" is more likely an ending, and "q_proj" a part of a name, than a misspelling.
    const bool is_part = tensor.name.find(name) != std::string::npos;
    const size_t distance = tensor.name.ends_with(name) ? 0
                            : is_part                   ? 1
                                                        : edits(tensor.name, name);
    if (distance >= fewest) continue;
    fewest = distance;
    best = tensor.name;
  }
  return best;
}

constexpr size_t kMaxExtents = 1 << 17;

class Collector {
 public:
  Collector(const InputFiles& inputs, const Contents& contents)
      : inputs_(&inputs), contents_(&contents) {}

  void add(const SourceRun& run) {
    const bool columns = run.combine == Combine::interleave;
    int64_t first = first_;
    for (size_t i = 0; i < run.sources().size(); ++i) {
      push(run.sources()[i], first, run);
      if (columns) {
        first += out_.back().row_elements;
      } else {
        out_.back().copy = static_cast<uint32_t>(i);
      }
    }
    first_ += static_cast<int64_t>(run.numel());
  }

  std::vector<TensorExtent> take() { return std::move(out_); }

 private:
  void push(const Rows& rows, int64_t first, const SourceRun& run) {
    if (out_.size() == kMaxExtents) {
      throw UnsupportedError({}, "lies in more than " + counted(kMaxExtents, "piece"));
    }
    TensorExtent extent;
    extent.file = rows.file;
    extent.record = record_of(rows);
    extent.offset = rows.offset;
    extent.row_bytes = rows.row_bytes;
    extent.rows = run.rows;
    extent.first = first;
    extent.row_elements = static_cast<int64_t>(rows.row_bytes / size_of(run.stored));
    if (run.rows > 1) {
      extent.stride = rows.stride;
      extent.step = static_cast<int64_t>(run.source.row_bytes / size_of(run.stored));
    }
    extent.stored = run.stored;
    extent.mean = run.combine == Combine::mean;
    extent.rank = contents_->writer_of(*inputs_, rows.file);
    out_.push_back(std::move(extent));
  }

  std::string record_of(const Rows& rows) const {
    const std::vector<FilePart>* parts = inputs_->parts(rows.file);
    if (parts == nullptr) return contents_->record_at(rows.file, rows.offset);
    const auto behind = std::upper_bound(
        parts->begin(), parts->end(), rows.offset,
        [](uint64_t offset, const FilePart& part) { return offset < part.extent.offset; });
    return behind == parts->begin() ? "" : std::prev(behind)->name;
  }

  const InputFiles* inputs_;
  const Contents* contents_;
  int64_t first_ = 0;
  std::vector<TensorExtent> out_;
};

}  // namespace

std::vector<TensorExtent> extents_of(const InputFiles& inputs, const Contents& contents,
                                     const TensorSource& tensor) {
  Collector collector(inputs, contents);
  tensor.lower([&](const SourceRun& run) { collector.add(run); });
  return collector.take();
}

std::vector<FileId> files_with(const TensorSource& tensor) {
  if (const auto view = tensor.as_strided()) return {view->extent.file};
  return tensor.files();
}

std::vector<ShardName> ranks_of(const InputFiles& inputs, const Contents& contents,
                                const std::vector<FileId>& files) {
  std::map<std::pair<uint32_t, uint32_t>, ShardName> ranks;
  for (const FileId file : files) {
    const auto name = contents.writer_of(inputs, file);
    if (name && name->kind != ShardName::Kind::universal) {
      ranks.emplace(std::pair(name->mp_rank, name->dp_rank), *name);
    }
  }
  std::vector<ShardName> out;
  for (const auto& [rank, name] : ranks) out.push_back(name);
  return out;
}

const NamedTensor& tensor_named(const Contents& contents, const std::string& name,
                                const std::string& state) {
  std::string states;
  bool is_there = false;
  for (const NamedTensor& tensor : contents.tensors()) {
    if (tensor.name != name) continue;
    is_there = true;
    if (tensor.state == state) return tensor;
    if (!tensor.state.empty()) states += (states.empty() ? "" : ", ") + tensor.state;
  }
  if (!states.empty()) {
    throw UsageError("'" + name + "' has no state '" + state + "'; it has " + states);
  }
  if (is_there) {
    throw UsageError("'" + name + "' has no states of an optimizer: it is frozen or a buffer");
  }
  UsageError error("there is no tensor '" + name + "'");
  if (name.find_first_of("*?[](^$|") != name.npos) {
    throw std::move(error).with_hint(
        "it takes one name; `ckpt-inspect list PATH --match REGEX` finds them");
  }
  const std::string nearest = nearest_name(contents, name);
  if (nearest.empty()) throw error;
  throw std::move(error).with_hint("the most similar name is '" + nearest + "'");
}

}  // namespace dsckpt
