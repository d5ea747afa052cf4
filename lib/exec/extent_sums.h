// Extent sums: checksums of ranges of files, computed by this process or by all ranks of its run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/extent.h"
#include "dsckpt/error.h"
#include "exec/rank_inputs.h"
#include "exec/reading.h"
#include "io/input_file.h"

namespace dsckpt {

enum class SumKind : uint8_t {
  crc32 = 1,  // four bytes, little endian
  sha256,
};

// The sum of each extent, or the reason why it cannot be read. Any thread calls `on_sum`, several
// at a time; none if `reading` only plans. Adds to progress.bytes_total. Throws InterruptedError,
// and the errors of ranks that cannot read.
using OnSum = std::function<void(size_t extent, std::string_view sum, const Error* failure)>;
void sum_extents(const InputFiles& inputs, std::span<const Extent> extents, SumKind kind,
                 const Reading& reading, const OnSum& on_sum);

// Does a PieceTask of it.
std::string sum_for_rank(std::string_view task, RankInputs& inputs, unsigned threads,
                         Progress& progress);

}  // namespace dsckpt
