// A block that Python's tarfile takes for the header of a file.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace dsckpt::test {

// `start` filled up with zeros to a block of 512 bytes, with the checksum of a tar. It is that of
// signed bytes if `is_signed`.
inline std::string with_tar_checksum(std::string start, bool is_signed = false) {
  constexpr size_t kSum = 148;
  start.resize(512, '\0');
  start.replace(kSum, 8, "        ");
  int64_t sum = 0;
  for (const char c : start) {
    sum += is_signed ? static_cast<signed char>(c) : static_cast<unsigned char>(c);
  }
  char text[32];
  if (sum >= 0) {
    std::snprintf(text, sizeof text, "%06llo", static_cast<unsigned long long>(sum));
    start.replace(kSum, 8, std::string(text) + '\0' + ' ');
  } else {
    // In base 256, as two's complement.
    for (size_t i = 0; i < 8; ++i) {
      start[kSum + i] = static_cast<char>(static_cast<uint64_t>(sum) >> 8 * (7 - i));
    }
  }
  return start;
}

}  // namespace dsckpt::test
