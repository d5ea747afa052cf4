// The content of an input file as a ByteSource.
#pragma once

#include "base/byte_source.h"
#include "io/input_file.h"

namespace dsckpt {

// All of `file`, which is borrowed. Reading throws what InputFile::read() throws.
inline ByteSource source_of(const InputFile& file) {
  return {file.size(), [&file](uint64_t offset, uint64_t size) { return file.read(offset, size); }};
}

}  // namespace dsckpt
