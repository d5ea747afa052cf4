// This whole file is compiled for AVX2. It must not define or include other inline functions: the
// linker could use this file's copies of them everywhere.
#include "codec/xxh3_avx2.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace dsckpt {

uint64_t xxh3_avx2(const void* bytes, size_t size) {
  return XXH3_64bits(bytes, size);
}

}  // namespace dsckpt
