// ItemReader: gathers, converts and checksums the bytes of a plan's items.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/merged_tile.h"
#include "exec/factor_cache.h"
#include "exec/record_checks.h"
#include "io/input_file.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// Belongs to one worker: it has the buffers for casts, combinations and dense rows. Its arguments
// must outlive it. It reports to `checks`, which many readers share.
class ItemReader {
 public:
  // The number of bytes that are read, checksummed and converted at once. With the chunk they stay
  // in the second-level cache (exec/README.md).
  static constexpr uint64_t kPieceBytes = 256 << 10;
  // The same for long units. Those of a network's file system (io_choice.h) are read in two pieces,
  // since each request costs time there, however short it is.
  static constexpr uint64_t piece_bytes(uint64_t unit_bytes) {
    return unit_bytes >= kLongUnit ? unit_bytes / 2 : kPieceBytes;
  }
  static constexpr uint64_t kLongUnit = 4 << 20;
  // True if such rows are read in one go and then picked from memory.
  static constexpr bool is_dense(const Rows& rows) {
    return static_cast<uint64_t>(rows.stride) <= kDenseStride && rows.row_bytes <= kDenseStride;
  }

  ItemReader(const CopyPlan& plan, const InputFiles& inputs, RecordChecks& checks,
             FactorCache& factors, uint64_t piece_bytes = kPieceBytes)
      : plan_(plan),
        inputs_(inputs),
        checks_(checks),
        factors_(factors),
        piece_bytes_(piece_bytes),
        chunk_(piece_bytes) {}

  // Fills `target` with the bytes of item `index` from `skip` on; both ends lie between elements.
  // With `crc`, *crc becomes the CRC32 of `target`. Returns the bytes read. Throws the errors of
  // reading and converting, and InconsistentError for operands of a same that differ.
  uint64_t read(size_t index, uint64_t skip, std::span<std::byte> target, uint32_t* crc);

 private:
  static constexpr uint64_t kDenseStride = 4096;

  struct Target;
  void read_piece(const CopyItem& item, uint64_t from, std::span<std::byte> target);
  void average(const CopyItem& item, uint64_t from, std::span<std::byte> target);
  void compare(const CopyItem& item, uint64_t from, std::span<std::byte> target);
  void gather(const CopyItem& item, uint64_t from, std::span<std::byte> target);
  void average_weighted(const CopyItem& item, uint64_t from, std::span<std::byte> target);
  void weave(const CopyItem& item, uint64_t from, std::span<std::byte> target);
  uint64_t update(const CopyItem& item, uint64_t skip, std::span<std::byte> target, uint32_t* crc);
  void read_float32(const ItemRange& items, uint64_t first, std::span<float> values);
  std::vector<float> read_factor(const PlannedUpdate::Factor& factor, uint64_t batches,
                                 uint64_t rows, uint64_t columns);
  Factors load_factors(const PlannedUpdate& update);
  std::vector<double> column_factors(const PlannedUpdate& update, const Factors& factors);
  struct Tile;
  MergedTile tile_of(const PlannedUpdate& update, const Factors& factors, const Tile& tile);
  std::span<double> merge_tile(const PlannedUpdate& update, const Factors& factors,
                               const Tile& tile);
  double row_factor(const PlannedUpdate& update, const Factors& factors, uint64_t row);
  void read_operand(size_t index, uint64_t skip, std::span<std::byte> bytes);
  void check_same(const Rows& operand, uint64_t skip, std::span<const std::byte> value,
                  std::span<const std::byte> other, uint32_t what);
  void gather_rows(const Rows& rows, uint64_t from, uint64_t to, const Target& target);
  uint32_t read_window(const Rows& rows, uint64_t from, uint64_t to, const Target& target,
                       bool checked);
  // The halves of the chunk: one combines several reads, the other holds bytes to convert.
  std::span<std::byte> scratch() { return std::span(chunk_).first(piece_bytes_ / 2); }
  std::span<std::byte> unconverted() { return std::span(chunk_).last(piece_bytes_ / 2); }

  const CopyPlan& plan_;
  const InputFiles& inputs_;
  RecordChecks& checks_;
  FactorCache& factors_;
  const uint64_t piece_bytes_;
  std::vector<std::byte> chunk_;
  // For updates: the elements of the base, and the results.
  std::vector<float> base_;
  std::vector<double> merged_;
  // The row whose factor was computed last; several tiles may need it.
  const PlannedUpdate* row_update_ = nullptr;
  uint64_t row_ = 0;
  double row_factor_ = 1;
};

}  // namespace dsckpt
