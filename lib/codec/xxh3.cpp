#include "codec/xxh3.h"

// The header is compiled in, since static libraries of libxxhash lack the dispatch at run time.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "codec/xxh3_avx2.h"

namespace dsckpt {

uint64_t xxh3(ByteSpan bytes) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return xxh3_avx2(bytes.data(), bytes.size());
#endif
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace dsckpt
