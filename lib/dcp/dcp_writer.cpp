#include "dcp/dcp_writer.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "base/kernels.h"
#include "base/keyed_hash.h"
#include "base/text.h"
#include "dcp/chunk_cut.h"
#include "dsckpt/error.h"
#include "format/zip.h"

namespace dsckpt {
namespace {

// torch.save's name for the folder of the records when it writes to a stream.
constexpr const char* kArchive = "archive";
// Any checkpoint may have keys and values of so many bytes. A key also takes kKeyOverhead bytes in
// the metadata.
constexpr uint64_t kLeastLimit = uint64_t{128} << 20;
constexpr uint64_t kKeyOverhead = 256;

// Returns the archive around the elements of a row-major tensor.
ZipLayout::Frame frame_of(DType dtype, const Shape& shape) {
  TorchArchiveWriter writer;
  writer.document().set_root(writer.tensor(TensorSource::zeros(dtype, shape)));
  return TorchArchiveWriter::zip_of(std::move(writer).write(), kArchive).frame();
}

// Returns the archive with its elements.
std::string filled(const ZipLayout::Frame& frame, std::string_view elements) {
  std::string archive = frame.head + std::string(elements) + frame.tail;
  std::string sum;
  append_le(sum, crc32(0, as_byte_span(elements)));
  for (const uint64_t patch : frame.patches) archive.replace(patch, sum.size(), sum);
  return archive;
}

}  // namespace

DcpWriter::DcpWriter(std::string folder, uint32_t ranks, uint64_t input_bytes)
    : folder_(std::move(folder)),
      ranks_(ranks),
      most_bytes_(std::max(kLeastLimit, 2 * input_bytes)) {}

void DcpWriter::add(Entry entry) {
  bytes_ += entry.archive.size();
  for (const DcpPath& path : entry.keys) bytes_ += kKeyOverhead + dcp_key(path).size();
  if (bytes_ > most_bytes_) {
    throw UnsupportedError({}, "the keys and values of the folder take more than " +
                                   human_bytes(most_bytes_) + ", far more than the checkpoint")
        .with_hint("--weights-only leaves the optimizer out");
  }
  entries_.push_back(std::move(entry));
}

void DcpWriter::add_tensor(std::vector<DcpPath> keys, TensorSource tensor, Cut cut) {
  const bool has_rows = !tensor.shape().empty() && tensor.numel() > 0;
  add({.keys = std::move(keys),
       .tensor = {.dtype = tensor.dtype(), .shape = tensor.shape()},
       .source = {std::move(tensor)},
       .cut = has_rows ? cut : Cut::whole,
       .is_tensor = true});
}

void DcpWriter::add_float(std::vector<DcpPath> keys, float number) {
  std::string elements;
  append_le(elements, number);
  add({.keys = std::move(keys),
       .tensor = {.dtype = DType::float32},
       .is_tensor = true,
       .archive = filled(frame_of(DType::float32, {}), elements)});
}

void DcpWriter::add_value(std::vector<DcpPath> keys, TorchArchiveWriter::Written value) {
  add({.keys = std::move(keys),
       .archive = TorchArchiveWriter::zip_of(std::move(value), kArchive).frame().head});
}

// All positions must be known before anything is laid out, since outputs have their sizes from the
// start.
class DcpWriter::Layout {
 public:
  Layout(const std::string& folder, uint32_t ranks, std::vector<Entry> entries)
      : prefix_(folder.empty() ? "" : folder + "/"),
        ranks_(ranks),
        entries_(std::move(entries)),
        files_(ranks) {}

  Contents lay_out(PlanBuilder& plan) {
    check_keys();
    contents_.least_chunk_bytes = least();
    for (Entry& entry : entries_) place(entry);
    put(plan);
    put_metadata(plan);
    return std::move(contents_);
  }

 private:
  // Chunks of the same type and shape share a frame, which is kept once in the plan.
  struct Frame {
    ZipLayout::Frame zip;
    Extent head = {};
    Extent tail = {};
    bool is_kept = false;
  };
  struct Placed {
    const Entry* entry;
    Frame* frame;  // nullptr: the entry has its own archive
    int64_t first_row;
    int64_t rows;
    uint64_t offset;
  };
  struct File {
    std::vector<Placed> archives;
    uint64_t size = 0;
  };

  static std::string file_name(uint32_t rank) {
    return "__" + std::to_string(rank) + "_0" + std::string(kDcpDataSuffix);
  }

  void check_keys() {
    KeyedSet<std::string> seen;
    for (const Entry& entry : entries_) {
      for (const DcpPath& path : entry.keys) {
        const auto [key, is_new] = seen.insert(dcp_key(path));
        if (!is_new) throw InconsistentError({.tensor = *key}, "is the key of two values");
      }
    }
    contents_.keys = seen.size();
  }

  static CutTensor cut_of(const Entry& entry) {
    const int64_t rows = entry.tensor.shape.front();
    return {rows, entry.source.front().nbytes() / static_cast<uint64_t>(rows)};
  }

  uint64_t least() const {
    std::vector<CutTensor> tensors;
    for (const Entry& entry : entries_) {
      if (entry.cut == Cut::rows) tensors.push_back(cut_of(entry));
    }
    return least_chunk_bytes(tensors, ranks_);
  }

  void place(Entry& entry) {
    if (entry.cut == Cut::whole) {
      add_chunk(entry, 0, 0, entry.tensor.shape);
    } else {
      const CutTensor tensor = cut_of(entry);
      const int64_t step = rows_of_chunk(tensor, ranks_, contents_.least_chunk_bytes);
      const auto of_rank =
          static_cast<int64_t>(div_ceil(static_cast<uint64_t>(tensor.rows), ranks_));
      for (int64_t row = 0; row < tensor.rows; row += step) {
        Shape sizes = entry.tensor.shape;
        sizes[0] = std::min(step, tensor.rows - row);
        add_chunk(entry, static_cast<uint32_t>(row / of_rank), row, std::move(sizes));
      }
    }
    for (const DcpPath& path : entry.keys) {
      if (!entry.is_tensor) break;
      contents_.tensors.push_back(
          {dcp_key(path), entry.tensor.dtype, entry.tensor.shape, entry.tensor.chunks.size()});
    }
  }

  void add_chunk(Entry& entry, uint32_t rank, int64_t row, Shape sizes) {
    File& file = files_[rank];
    Frame* frame = entry.source.empty() ? nullptr : &frame_for(entry.tensor.dtype, sizes);
    const int64_t rows = entry.cut == Cut::rows ? sizes[0] : 0;
    file.archives.push_back({&entry, frame, row, rows, file.size});
    const uint64_t size = frame == nullptr ? entry.archive.size() : frame->zip.size();
    Shape offsets(sizes.size(), 0);
    if (entry.cut == Cut::rows) offsets[0] = row;
    entry.tensor.chunks.push_back({.offsets = std::move(offsets),
                                   .sizes = std::move(sizes),
                                   .place = {file_name(rank), file.size, size}});
    file.size = checked_add(file.size, size);
    ++contents_.chunks;
  }

  Frame& frame_for(DType dtype, const Shape& shape) {
    const auto [frame, is_new] = frames_.try_emplace({dtype, shape});
    if (is_new) frame->second.zip = frame_of(dtype, shape);
    return frame->second;
  }

  void put(PlanBuilder& plan) {
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      const File& file = files_[rank];
      if (file.size == 0) continue;
      const OutputId out = plan.add_output(prefix_ + file_name(rank), file.size);
      for (const Placed& placed : file.archives) {
        if (placed.frame == nullptr) {
          plan.put_literal(out, placed.offset, placed.entry->archive);
        } else {
          put_tensor(plan, out, placed);
        }
      }
    }
  }

  static void put_tensor(PlanBuilder& plan, OutputId out, const Placed& placed) {
    Frame& frame = *placed.frame;
    if (!frame.is_kept) {
      frame.head = plan.keep_literal(frame.zip.head);
      frame.tail = plan.keep_literal(frame.zip.tail);
      frame.is_kept = true;
    }
    plan.put_kept_literal(out, placed.offset, frame.head);
    if (frame.zip.elements == 0) return;
    const TensorSource& whole = placed.entry->source.front();
    const uint64_t begin = placed.offset + frame.zip.head.size();
    const uint64_t end = begin + frame.zip.elements;
    const bool is_cut = placed.entry->cut == Cut::rows;
    in_context({.tensor = dcp_key(placed.entry->keys.front())}, [&] {
      plan.put(out, begin, is_cut ? whole.narrow(0, placed.first_row, placed.rows) : whole);
    });
    plan.put_kept_literal(out, end, frame.tail);
    std::vector<uint64_t> patches = frame.zip.patches;
    for (uint64_t& patch : patches) patch += placed.offset;
    plan.add_digest({.out = out, .begin = begin, .end = end, .patches = std::move(patches)});
  }

  void put_metadata(PlanBuilder& plan) {
    DcpMetadata metadata;
    for (Entry& entry : entries_) {
      for (size_t i = 0; i < entry.keys.size(); ++i) {
        DcpValue value{.name = dcp_key(entry.keys[i])};
        value.path = std::move(entry.keys[i]);
        if (!entry.is_tensor) {
          value.pickle = entry.tensor.chunks.front().place;
        } else if (i + 1 < entry.keys.size()) {
          value.tensor = entry.tensor;
        } else {
          value.tensor = std::move(entry.tensor);
        }
        metadata.values.push_back(std::move(value));
      }
    }
    const std::string bytes = dcp_metadata_pickle(metadata);
    contents_.metadata_bytes = bytes.size();
    plan.put_literal(plan.add_output(prefix_ + std::string(kDcpMetadataName), bytes.size()), 0,
                     bytes);
  }

  std::string prefix_;
  uint32_t ranks_;
  std::vector<Entry> entries_;
  std::vector<File> files_;
  std::map<std::pair<DType, Shape>, Frame> frames_;
  Contents contents_;
};

DcpWriter::Contents DcpWriter::lay_out(PlanBuilder& plan) && {
  return Layout(folder_, ranks_, std::move(entries_)).lay_out(plan);
}

}  // namespace dsckpt
