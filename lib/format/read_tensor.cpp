#include "format/read_tensor.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/kernels.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

// Operands are read in pieces of this size.
constexpr size_t kPieceBytes = 64 << 10;

void read_combined(const InputFiles& inputs, const SourceRun& run, std::span<std::byte> out) {
  std::vector<std::byte> buffer(std::min(out.size(), kPieceBytes));
  const size_t operands = 1 + run.more.size();
  const bool mean = run.combine == Combine::mean;
  for (uint64_t at = 0; at < out.size(); at += kPieceBytes) {
    const std::span<std::byte> piece = out.subspan(at, std::min(out.size() - at, kPieceBytes));
    const std::span<std::byte> other = std::span(buffer).first(piece.size());
    if (mean) std::fill(piece.begin(), piece.end(), std::byte{0});
    for (size_t i = 0; i < operands; ++i) {
      const Operand operand = i == 0 ? Operand{run.file, run.offset} : run.more[i - 1];
      const InputFile& file = inputs[operand.in];
      const bool value = !mean && i == 0;
      file.read_at(operand.src + at, value ? piece : other);
      if (mean) {
        add_float32(piece.data(), other.data(), piece.size() / sizeof(float));
      } else if (!value) {
        const auto differs = std::mismatch(piece.begin(), piece.end(), other.begin()).first;
        if (differs == piece.end()) continue;
        throw InconsistentError(
            {.file = file.display(),
             .offset = operand.src + at + static_cast<uint64_t>(differs - piece.begin())},
            *run.what + " are not the same");
      }
    }
    if (mean) {
      divide_float32(piece.data(), static_cast<float>(operands), piece.size() / sizeof(float));
    }
  }
}

}  // namespace

void read_elements(const InputFiles& inputs, const TensorSource& source, int64_t first,
                   int64_t count, std::span<std::byte> out) {
  if (count < 0 || out.size() != static_cast<uint64_t>(count) * size_of(source.dtype())) {
    throw InconsistentError({}, "a buffer of another size than the elements to read");
  }
  source.lower(first, count, [&](const SourceRun& run) {
    if (run.stored != run.result) throw InconsistentError({}, "a cast tensor cannot be read");
    if (run.combine == Combine::zeros) {
      std::fill_n(out.begin(), run.row_bytes, std::byte{0});
      out = out.subspan(run.row_bytes);
      return;
    }
    if (run.combine == Combine::interleave) {
      for (uint64_t row = 0; row < run.rows; ++row) {
        for (const Operand& column : run.more) {
          inputs[column.in].read_at(column.src + row * static_cast<uint64_t>(column.stride),
                                    out.first(column.row_bytes));
          out = out.subspan(column.row_bytes);
        }
      }
      return;
    }
    if (run.combine != Combine::none) {
      read_combined(inputs, run, out.first(run.row_bytes));
      out = out.subspan(run.row_bytes);
      return;
    }
    for (uint64_t row = 0; row < run.rows; ++row) {
      inputs[run.file].read_at(run.offset + row * static_cast<uint64_t>(run.stride),
                               out.first(run.row_bytes));
      out = out.subspan(run.row_bytes);
    }
  });
}

}  // namespace dsckpt
