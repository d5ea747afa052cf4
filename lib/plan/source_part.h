// SourcePart: neighbouring elements of a lazy tensor as bytes, for another process.
#pragma once

#include <cstdint>
#include <functional>

#include "base/varint.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// Writes elements [first, first + count) of `source`, at least one. Weighted means and merged
// weights throw std::logic_error. `number_of` gives the numbers that the other process has for its
// files.
void write_source(VarintWriter& writer, const TensorSource& source, int64_t first, int64_t count,
                  const std::function<FileId(FileId)>& number_of);

// Reads the elements that write_source() was given, as a vector of `count`. `file_of` turns its
// numbers into files. Throws CorruptError for bytes that write_source() did not write.
TensorSource read_source(VarintReader& reader, const std::function<FileId(FileId)>& file_of);

}  // namespace dsckpt
