// SourcePart: neighbouring elements of a lazy tensor as bytes, for another process.
#pragma once

#include <cstdint>
#include <functional>

#include "base/varint.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// Writes elements [first, first + count), at least one, of `source`, which is neither cast nor a
// weighted mean: both throw std::logic_error. `number_of` says what its files are called there.
void write_source(VarintWriter& writer, const TensorSource& source, int64_t first, int64_t count,
                  const std::function<FileId(FileId)>& number_of);

// The elements that write_source() was given, as a vector of `count`. `file_of` is given those
// numbers. Throws CorruptError for what write_source() has not written.
TensorSource read_source(VarintReader& reader, const std::function<FileId(FileId)>& file_of);

}  // namespace dsckpt
