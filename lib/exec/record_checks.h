// RecordChecks: the CRC32 of input records, computed on the way.
//
// A record that the plan reads whole is checksummed piece by piece by whoever reads it; the pieces
// are combined at the end. What little the plan leaves out of such a record (padding, mostly) is
// read besides, so that the check costs no second pass. Operands of means and all but the first of
// what must be the same are not checksummed where they are used; they are read besides, too.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "io/input_file.h"
#include "plan/copy_plan.h"

namespace dsckpt {

class RecordChecks {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  // A range of a record that the plan itself does not read in a way that can be checked.
  struct ExtraRead {
    uint32_t record;
    Extent extent;
  };

  // With `all`, every record is checked; else those of which the plan reads all but a little.
  RecordChecks(const CopyPlan& plan, std::vector<InputRecord> records, bool all);

  // The record whose checksum the bytes of item `index` belong to, or kNone.
  uint32_t record_of(size_t index) const { return record_of_item_[index]; }
  const std::vector<ExtraRead>& extra_reads() const { return extra_reads_; }
  uint64_t checked() const { return checked_; }

  // The CRC32 of `extent`, part of `record`. Any thread.
  void report(uint32_t record, Extent extent, uint32_t crc);
  // After the last report. Throws CorruptError that names the first record that is wrong.
  void verify(const InputFiles& inputs) const;

 private:
  struct Piece {
    uint32_t record;
    uint32_t crc;
    uint64_t offset;
    uint64_t size;
  };
  std::vector<InputRecord> records_;
  std::vector<uint32_t> record_of_item_;
  std::vector<ExtraRead> extra_reads_;
  uint64_t checked_ = 0;
  std::mutex mutex_;
  mutable std::vector<Piece> pieces_;
};

}  // namespace dsckpt
