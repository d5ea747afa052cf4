// All of this file is compiled for AVX2. Nothing else may be here, and no header with inline
// functions: the linker could take this file's copies of them for everybody's.
#include "codec/xxh3_avx2.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace dsckpt {

uint64_t xxh3_avx2(const void* bytes, size_t size) {
  return XXH3_64bits(bytes, size);
}

}  // namespace dsckpt
