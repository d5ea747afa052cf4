#include "format/read_tensor.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/kernels.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

// Operands are read in pieces of this size.
constexpr size_t kPieceBytes = 64 << 10;

void read_mean(const InputFiles& inputs, const SourceRun& run, uint64_t at,
               std::span<std::byte> piece, std::span<std::byte> term) {
  const size_t count = piece.size() / sizeof(float);
  std::fill(piece.begin(), piece.end(), std::byte{0});
  for (const Rows& operand : run.sources()) {
    inputs[operand.file].read_at(operand.offset + at, term);
    add_float32(piece.data(), term.data(), count);
  }
  divide_float32(piece.data(), static_cast<float>(run.sources().size()), count);
}

void read_same(const InputFiles& inputs, const SourceRun& run, uint64_t at,
               std::span<std::byte> piece, std::span<std::byte> other) {
  const Rows& first = run.sources().front();
  inputs[first.file].read_at(first.offset + at, piece);
  for (const Rows& operand : run.sources().subspan(1)) {
    const InputFile& file = inputs[operand.file];
    file.read_at(operand.offset + at, other);
    const auto differs = std::mismatch(piece.begin(), piece.end(), other.begin()).first;
    if (differs == piece.end()) continue;
    throw InconsistentError(
        {.file = file.display(),
         .offset = operand.offset + at + static_cast<uint64_t>(differs - piece.begin())},
        *run.what + " are not the same");
  }
}

// Combines in pieces, so that the operands need little memory.
void read_combined(const InputFiles& inputs, const SourceRun& run, std::span<std::byte> out) {
  std::vector<std::byte> buffer(std::min(out.size(), kPieceBytes));
  const auto& read = run.combine == Combine::mean ? read_mean : read_same;
  for (uint64_t at = 0; at < out.size(); at += kPieceBytes) {
    const std::span<std::byte> piece = out.subspan(at, std::min(out.size() - at, kPieceBytes));
    read(inputs, run, at, piece, std::span(buffer).first(piece.size()));
  }
}

// Many short pieces are read at once if the range around them is at most this long.
constexpr uint64_t kMostAtOnce = 1 << 20;

// Returns the range around elements that lie in several rows, or nullopt.
std::optional<Extent> span_of_rows(const TensorSource& source, int64_t first, int64_t count) {
  std::optional<Extent> span;
  uint64_t rows = 0;
  source.lower(first, count, [&](const SourceRun& run) {
    const Extent part = run.source.span(run.rows);
    rows += run.rows;
    if (!span) span = part;
    const uint64_t end = std::max(span->end(), part.end());
    span->offset = std::min(span->offset, part.offset);
    span->size = end - span->offset;
  });
  return rows > 1 ? span : std::nullopt;
}

// Copies the elements out of the bytes of span_of_rows().
void pick_rows(const TensorSource& source, int64_t first, int64_t count, const Extent& span,
               std::span<const std::byte> bytes, std::span<std::byte> out) {
  source.lower(first, count, [&](const SourceRun& run) {
    for (uint64_t row = 0; row < run.rows; ++row) {
      const std::byte* from = bytes.data() + (run.source.begin_of(row) - span.offset);
      std::memcpy(out.data(), from, run.source.row_bytes);
      out = out.subspan(run.source.row_bytes);
    }
  });
}

// Reads row by row, and the columns of each row in turn.
void read_rows(const InputFiles& inputs, const SourceRun& run, std::span<std::byte> out) {
  for (uint64_t row = 0; row < run.rows; ++row) {
    for (const Rows& rows : run.sources()) {
      inputs[rows.file].read_at(rows.begin_of(row), out.first(rows.row_bytes));
      out = out.subspan(rows.row_bytes);
    }
  }
}

}  // namespace

void read_elements(const InputFiles& inputs, const TensorSource& source, int64_t first,
                   int64_t count, std::span<std::byte> out) {
  if (count < 0 || out.size() != static_cast<uint64_t>(count) * size_of(source.dtype())) {
    throw InconsistentError({}, "a buffer of a different size than the elements to read");
  }
  const std::optional<Extent> span =
      source.is_strided() ? span_of_rows(source, first, count) : std::nullopt;
  if (span && span->size <= kMostAtOnce) {
    std::vector<std::byte> bytes(span->size);
    inputs[span->file].read_at(span->offset, bytes);
    return pick_rows(source, first, count, *span, bytes, out);
  }
  source.lower(first, count, [&](const SourceRun& run) {
    if (run.stored != run.result) throw InconsistentError({}, "a cast tensor cannot be read");
    const std::span<std::byte> target = out.first(run.result_bytes());
    out = out.subspan(target.size());
    switch (run.combine) {
      case Combine::none:
      case Combine::interleave:
        return read_rows(inputs, run, target);
      case Combine::mean:
      case Combine::same:
        return read_combined(inputs, run, target);
      case Combine::weighted:  // float64 only; see above
      case Combine::low_rank:
      case Combine::zeros:
        std::fill(target.begin(), target.end(), std::byte{0});
    }
  });
}

}  // namespace dsckpt
