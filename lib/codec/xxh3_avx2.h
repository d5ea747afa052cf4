// The version of xxh3() for processors with AVX2.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dsckpt {

uint64_t xxh3_avx2(const void* bytes, size_t size);

}  // namespace dsckpt
