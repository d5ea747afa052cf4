#include "plan/source_part.h"

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype_names.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

void write_rows(VarintWriter& writer, const Rows& rows,
                const std::function<FileId(FileId)>& number_of) {
  writer.number(number_of(rows.file));
  writer.number(rows.offset);
  writer.number(rows.row_bytes);
  writer.difference(0, static_cast<uint64_t>(rows.stride));
}

class Reader {
 public:
  Reader(VarintReader& bytes, const std::function<FileId(FileId)>& file_of)
      : bytes_(bytes), file_of_(file_of) {}

  TensorSource read() {
    const DType dtype = type();
    std::vector<TensorSource> parts;
    for (size_t left = bytes_.count(); left > 0; --left) {
      stored_ = type();
      const TensorSource part = run();
      parts.push_back(stored_ == dtype ? part : part.to(dtype));
    }
    if (parts.size() == 1) return std::move(parts.front());
    return TensorSource::cat(0, std::move(parts));
  }

 private:
  DType type() { return static_cast<DType>(bytes_.below(kDTypeCount)); }

  TensorSource run() {
    const uint64_t combine = bytes_.number();
    const auto rows = static_cast<int64_t>(bytes_.number());
    const auto numel = static_cast<int64_t>(bytes_.number());
    if (combine == static_cast<uint64_t>(Combine::zeros)) {
      return TensorSource::zeros(stored_, {numel});
    }
    std::vector<TensorSource> parts;
    for (size_t left = bytes_.count(); left > 0; --left) parts.push_back(matrix(rows));
    if (parts.empty()) throw CorruptError({}, "a run without a place");
    switch (static_cast<Combine>(combine)) {
      case Combine::none:
        return parts.front().flatten();
      case Combine::mean:
        return TensorSource::mean(std::move(parts)).flatten();
      case Combine::same:
        return TensorSource::same(std::move(parts), bytes_.text()).flatten();
      case Combine::interleave:
        return TensorSource::cat(1, std::move(parts)).flatten();
      default:
        throw CorruptError({}, "no way to combine places");
    }
  }

  TensorSource matrix(int64_t rows) {
    Rows place;
    place.file = file_of_(static_cast<FileId>(bytes_.number()));
    place.offset = bytes_.number();
    place.row_bytes = bytes_.number();
    place.stride = static_cast<int64_t>(bytes_.difference(0));
    const auto element = static_cast<int64_t>(size_of(stored_));
    if (rows < 1) throw CorruptError({}, "a run without rows");
    return TensorSource::stored(place.span(static_cast<uint64_t>(rows)), stored_,
                                {rows, static_cast<int64_t>(place.row_bytes) / element},
                                {rows == 1 ? 0 : place.stride / element, 1});
  }

  VarintReader& bytes_;
  const std::function<FileId(FileId)>& file_of_;
  DType stored_ = DType::uint8;  // of the run
};

}  // namespace

void write_source(VarintWriter& writer, const TensorSource& source, int64_t first, int64_t count,
                  const std::function<FileId(FileId)>& number_of) {
  std::vector<SourceRun> runs;
  source.lower(first, count, [&](const SourceRun& run) {
    if (run.combine == Combine::weighted || run.combine == Combine::low_rank) {
      throw std::logic_error("a tensor that is computed is not handed on");
    }
    runs.push_back(run);
  });
  writer.number(static_cast<uint64_t>(source.dtype()));
  writer.number(runs.size());
  for (const SourceRun& run : runs) {
    writer.number(static_cast<uint64_t>(run.stored));
    writer.number(static_cast<uint64_t>(run.combine));
    writer.number(run.rows);
    writer.number(run.numel());
    if (run.combine == Combine::zeros) continue;
    writer.number(run.sources().size());
    for (const Rows& rows : run.sources()) write_rows(writer, rows, number_of);
    if (run.combine == Combine::same) writer.text(*run.what);
  }
}

TensorSource read_source(VarintReader& reader, const std::function<FileId(FileId)>& file_of) {
  return Reader(reader, file_of).read();
}

}  // namespace dsckpt
