// What xxh3() calls where the processor has AVX2.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dsckpt {

uint64_t xxh3_avx2(const void* bytes, size_t size);

}  // namespace dsckpt
