#include "format/read_tensor.h"

#include "base/error.h"

namespace dsckpt {

void read_elements(const InputFiles& inputs, const TensorSource& source, int64_t first,
                   int64_t count, std::span<std::byte> out) {
  if (count < 0 || out.size() != static_cast<uint64_t>(count) * size_of(source.dtype())) {
    throw InconsistentError({}, "a buffer of another size than the elements to read");
  }
  source.lower(first, count, [&](const SourceRun& run) {
    if (run.stored != run.result) throw InconsistentError({}, "a cast tensor cannot be read");
    for (uint64_t row = 0; row < run.rows; ++row) {
      inputs[run.file].read_at(run.offset + row * static_cast<uint64_t>(run.stride),
                               out.first(run.row_bytes));
      out = out.subspan(run.row_bytes);
    }
  });
}

}  // namespace dsckpt
