// The header of NumPy's .npy files: numpy/lib/format.py. For the scan only.
#pragma once

#include <cstdint>
#include <optional>

#include "base/byte_source.h"

namespace dsckpt {

struct NpyHeader {
  uint64_t size = 0;  // where the data begins
  // Bytes of the data, if the header has NumPy's form for types without objects: then nothing else
  // is read. nullopt: the data may be a pickle.
  std::optional<uint64_t> data;
};

// The header of a source that begins with NumPy's magic bytes.
NpyHeader npy_header(const ByteSource& source);

}  // namespace dsckpt
