// The system's random numbers: getrandom(2).
#pragma once

#include <cstdint>

namespace dsckpt {

// A number whose bits are all random. Any thread. Throws IoError.
uint64_t random_number();

}  // namespace dsckpt
