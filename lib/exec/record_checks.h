// RecordChecks: computes the CRC32 of input records while they are read.
//
// Each reader checksums its piece of a record; the pieces are combined at the end. Bytes of a used
// record that the plan leaves out (mostly padding) are read extra, so no second pass is needed.
// Some bytes are not checksummed where they are used, and are read extra as well. These are
// operands of means, and all but the first operand of a same. They are also rows that lie apart,
// pieces that span two records, and reads that begin where an earlier one has not ended.
//
// If a plan reads a little of many records, reading the rest would be most of the work. Then the
// records with the smallest rest are checked, and unchecked() has the number of the others.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "io/input_file.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// The CRC32 of a part of a record. Records are numbered in the order of files and offsets.
struct RecordPiece {
  uint32_t record = 0;
  uint64_t offset = 0;  // in the file
  uint64_t size = 0;
  uint32_t crc = 0;
};

// The records that the bytes read by a plan belong to.
struct RecordUse {
  static constexpr uint32_t kNone = ~uint32_t{0};
  // A range of a record that the plan itself does not read in a form that can be checked.
  struct ExtraRead {
    uint32_t record = 0;
    Extent extent = {};

    static void fields(auto& codec, auto& self) {
      codec(self.record, self.extent.file, self.extent.offset, self.extent.size);
    }
  };
  std::vector<uint32_t> of_item = {};     // of each item of the plan
  std::vector<uint32_t> of_operand = {};  // of each of its operands
  std::vector<ExtraRead> extra_reads = {};
};

class RecordChecks {
 public:
  static constexpr uint32_t kNone = RecordUse::kNone;
  using ExtraRead = RecordUse::ExtraRead;

  // The limit of extra reads: kMostBesides, or a share of the plan's reads if that is more. Each
  // record may have another 64 KiB, or a 64th of its size, in any case.
  static constexpr uint64_t kMostBesides = uint64_t{64} << 20;
  static constexpr uint64_t kShareBesides = 8;

  // Checks those of `records` that the plan reads any byte of; with `all`, every one.
  RecordChecks(const CopyPlan& plan, std::vector<InputRecord> records, bool all);
  // Takes over the decision of another process for a part of its plan, with `records` records. This
  // object only collects reports.
  RecordChecks(RecordUse use, size_t records);

  // The record of the bytes of item `index`, or kNone. The item is not an interleave. For a same,
  // the record of its first operand.
  uint32_t record_of_item(size_t index) const { return use_.of_item[index]; }
  // The record of a column of an interleave, or of an operand of a weighted mean, by its index in
  // the plan's operands.
  uint32_t record_of_operand(size_t index) const { return use_.of_operand[index]; }
  const std::vector<ExtraRead>& extra_reads() const { return use_.extra_reads; }
  const RecordUse& use() const { return use_; }
  uint64_t checked() const { return checked_; }
  uint64_t unchecked() const { return unchecked_; }

  // Reports the CRC32 of `extent`, a part of `record`. Any thread.
  void report(uint32_t record, Extent extent, uint32_t crc);
  // All reports, with neighbours joined. Not during a report.
  std::vector<RecordPiece> reported() const;
  // Adds the reports of another object for the same plan and records. Throws CorruptError for
  // reports that no such object can have.
  void restore(const std::vector<RecordPiece>& pieces);
  // Call it after the last report. Throws CorruptError that names the first wrong record. Throws
  // std::logic_error for a record that was to be checked and was not, or not wholly: the output
  // must not be committed.
  void verify(const InputFiles& inputs) const;

 private:
  struct Piece {
    uint64_t size;
    uint32_t crc;
  };
  std::vector<InputRecord> records_;
  std::vector<bool> to_check_;  // of each of them
  RecordUse use_;
  uint64_t checked_ = 0;
  uint64_t unchecked_ = 0;
  std::mutex mutex_;
  // The reports of each record, by offset in the file. Neighbours are joined at once, so only a few
  // exist, whatever the record's size.
  std::vector<std::map<uint64_t, Piece>> pieces_;
};

}  // namespace dsckpt
