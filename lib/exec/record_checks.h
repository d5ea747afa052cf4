// RecordChecks: the CRC32 of input records, computed on the way.
//
// A record is checksummed piece by piece by whoever reads it; the pieces are combined at the end.
// What the plan leaves out of a record that it reads from (padding, mostly) is read besides, so
// that the check costs no second pass. Operands of means, all but the first of what must be the
// same, columns of an interleave whose rows lie apart, and pieces that reach from one record into
// the next are not checksummed where they are used; they are read besides, too.
//
// Where a plan wants a little of much, reading the rest would be most of the work: then the records
// of which the least is left out are checked, and unchecked() says of how many that is not so.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "io/input_file.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// The CRC32 of a part of a record, which is known by its number in the order of files and offsets.
struct RecordPiece {
  uint32_t record = 0;
  uint64_t offset = 0;  // in the file
  uint64_t size = 0;
  uint32_t crc = 0;
};

// Which records the bytes that a plan reads belong to.
struct RecordUse {
  static constexpr uint32_t kNone = ~uint32_t{0};
  // A range of a record that the plan itself does not read in a way that can be checked.
  struct ExtraRead {
    uint32_t record = 0;
    Extent extent = {};
  };
  std::vector<uint32_t> of_item = {};     // of each item of the plan
  std::vector<uint32_t> of_operand = {};  // of each of its operands
  std::vector<ExtraRead> extra_reads = {};
};

class RecordChecks {
 public:
  static constexpr uint32_t kNone = RecordUse::kNone;
  using ExtraRead = RecordUse::ExtraRead;

  // What may be read besides: kMostBesides, or a share of what the plan reads, if that is more; and
  // of each record 64 KiB, or a 64th, without asking.
  static constexpr uint64_t kMostBesides = uint64_t{64} << 20;
  static constexpr uint64_t kShareBesides = 8;

  // Of `records`, those that the plan reads any byte of are checked; with `all`, every one.
  RecordChecks(const CopyPlan& plan, std::vector<InputRecord> records, bool all);
  // What another process has decided for a part of its plan, that has `records` of them: this one
  // only collects what is reported.
  RecordChecks(RecordUse use, size_t records);

  // The record whose checksum the bytes of item `index`, which is no interleave, belong to, or
  // kNone; of a same those of its first operand.
  uint32_t record_of_item(size_t index) const { return use_.of_item[index]; }
  // The same of a column of an interleave and of an operand of a weighted mean, given its index in
  // the plan's operands.
  uint32_t record_of_operand(size_t index) const { return use_.of_operand[index]; }
  const std::vector<ExtraRead>& extra_reads() const { return use_.extra_reads; }
  const RecordUse& use() const { return use_; }
  uint64_t checked() const { return checked_; }
  uint64_t unchecked() const { return unchecked_; }

  // The CRC32 of `extent`, part of `record`. Any thread.
  void report(uint32_t record, Extent extent, uint32_t crc);
  // All that was reported, neighbours joined. Not while anything is.
  std::vector<RecordPiece> reported() const;
  // Reports what another object of the same plan and records was reported. Throws CorruptError for
  // what no such object can have.
  void restore(const std::vector<RecordPiece>& pieces);
  // After the last report. Throws CorruptError that names the first record that is wrong, and
  // std::logic_error for one that should be checked and was not, wholly: nobody may commit that.
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
  // What was reported of each record, by its offset in the file. Neighbours become one at once, so
  // that there are only a few, whatever the size of the record.
  std::vector<std::map<uint64_t, Piece>> pieces_;
};

}  // namespace dsckpt
