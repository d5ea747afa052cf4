// XXH3, the checksum of packed files.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace dsckpt {

// XXH3 of 64 bits, seed 0, using the processor's vector instructions.
uint64_t xxh3(ByteSpan bytes);

}  // namespace dsckpt
