// Input files of random bytes, for tests of plans.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/kernels.h"
#include "exec/record_checks.h"
#include "io/input_file.h"
#include "plan/tensor_source.h"
#include "support/plan_tools.h"
#include "support/temp_file.h"

namespace dsckpt::test {

// The `count` elements from `offset` on.
inline TensorSource flat(FileId file, uint64_t offset, DType dtype, uint64_t count) {
  return TensorSource::stored({file, offset, count * size_of(dtype)}, dtype,
                              {static_cast<int64_t>(count)});
}

// Three files, each of `bytes`.
class RandomInputsTest : public testing::Test {
 protected:
  explicit RandomInputsTest(uint64_t bytes) {
    for (uint64_t i = 0; i < 3; ++i) {
      contents_.push_back(random_bytes(bytes, i));
      inputs_.add(folder_.write("input" + std::to_string(i), contents_.back()));
    }
  }

  // A record of a file, with its CRC32.
  InputRecord record(FileId file, uint64_t offset, uint64_t size) const {
    return {{file, offset, size},
            crc32(0, as_byte_span(contents_[file]).subspan(offset, size)),
            "record" + std::to_string(file)};
  }

  TempFolder folder_;
  std::vector<std::string> contents_;
  InputFiles inputs_;
};

}  // namespace dsckpt::test
