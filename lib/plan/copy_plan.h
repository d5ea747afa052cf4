// CopyPlan: every byte of every output file, decided before the first one is written.
//
// Plain data. An output file is tiled by items: pieces of input files, copied or cast, literal
// bytes and zeros. Once validate() has passed nothing is decided any more; running the plan is
// moving bytes. Items have absolute offsets and no item reads what another writes, so they can run
// in any order, on any number of threads, and the result is always the same bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/extent.h"
#include "base/keyed_hash.h"
#include "dsckpt/dtype.h"
#include "plan/piece_count.h"
#include "plan/rows.h"
#include "plan/tensor_source.h"

namespace dsckpt {

enum class Op : uint8_t {
  copy,        // bytes of an input file as they are
  cast,        // elements of an input file, converted
  literal,     // bytes of the plan itself
  zeros,       // bytes that are zero
  mean,        // the mean of float32 elements of the operands, converted if `to` is another type
  same,        // bytes that all operands have in common; converted like a mean
  interleave,  // row after row of every operand, its columns; converted like a mean
  weighted,    // the weighted mean of elements of the operands in float64, rounded once to `to`
  low_rank,    // elements of a merged weight in float64, rounded once to `to`
};

// One line of the plan: `rows` rows, laid one after the other into [dst, dst + dst_size). Plans
// have millions of them.
struct CopyItem {
  Op op = Op::copy;
  DType from = DType::uint8;  // element types; equal for copy, literal and zeros
  DType to = DType::uint8;
  OutputId out = 0;
  uint64_t dst = 0;  // bytes from the start of the output
  uint64_t rows = 1;
  // Of copy and cast the rows in the input, of literal those in CopyPlan::literals(). Of the others
  // only the length of a row means something: of zeros, which has one row; of mean and same, whose
  // operands are one row of that length each; of interleave the sum of its columns, which are as
  // many rows as the item. Of low_rank `source.offset` is the first element
  // of its update, in elements, and it has one row.
  Rows source;
  // All that mean, same, interleave and weighted read: a range of CopyPlan::operands(). At least
  // two, but for a mean and a weighted one.
  uint32_t operand_begin = 0;
  uint32_t operand_count = 0;
  // Of same: index into CopyPlan::texts; of weighted: index into CopyPlan::terms; of low_rank:
  // index into CopyPlan::updates.
  uint32_t what = 0;

  uint64_t dst_row_bytes() const { return source.row_bytes / size_of(from) * size_of(to); }
  uint64_t dst_size() const { return rows * dst_row_bytes(); }
  uint64_t dst_end() const { return dst + dst_size(); }
  bool reads_input() const { return op != Op::literal && op != Op::zeros; }
};

// One of the tensors that a weighted item is the mean of (WeightedTerm).
struct PlannedTerm {
  double weight = 1;
  double share = 1;
  DType stored = DType::float32;
  Op op = Op::copy;       // copy, mean or same: what is made of its operands
  uint32_t operands = 1;  // that many of the item's, after those of the terms before
  uint32_t what = 0;      // of same: index into CopyPlan::texts

  bool operator==(const PlannedTerm&) const = default;
};

// Items [begin, end) of CopyPlan::update_items().
struct ItemRange {
  uint32_t begin = 0;
  uint32_t end = 0;

  bool empty() const { return begin == end; }
};

// LowRankUpdate, with its tensors as items. Without a left factor, or a magnitude, its range is
// empty.
struct PlannedUpdate {
  struct Factor {
    ItemRange items;
    uint64_t batch_stride = 0;
    uint64_t row_stride = 0;
    uint64_t column_stride = 0;
  };
  uint64_t batches = 1;
  uint64_t rows = 1;
  uint64_t columns = 1;
  uint64_t rank = 1;
  Factor left;
  Factor right;
  double scale = 1;
  ItemRange base;
  ItemRange magnitude;
  bool norms_of_columns = false;

  uint64_t elements() const { return batches * rows * columns; }
};

// An output file: its path relative to the output folder, and its exact size.
struct PlannedFile {
  std::string path;
  uint64_t size = 0;
};
// Throws InconsistentError if one is no path inside the output folder, or two cannot both be there.
void check_paths(const std::vector<PlannedFile>& outputs);

// "The CRC32 of output bytes [begin, end) belongs, little-endian, at `patches`": zip wants the
// checksum of data it has just been given. Range and items start and end together; the places lie
// outside all ranges, and what the items give for them means nothing (exec/patches.h); ranges of
// one output do not overlap.
struct Digest {
  OutputId out = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  std::vector<uint64_t> patches;
};

// An input file as the plan needs it: its name for messages and how long it must be.
struct PlannedInput {
  std::string display;
  uint64_t size = 0;
};

// A record of an input whose CRC32 is known. The executor computes the CRC32 of every record that
// the plan reads whole and compares.
struct InputRecord {
  Extent extent;
  uint32_t crc32 = 0;
  std::string name;
};

class CopyPlan {
 public:
  const std::vector<PlannedFile>& outputs() const { return outputs_; }
  // Sorted by (out, dst).
  const std::vector<CopyItem>& items() const { return items_; }
  const std::vector<Digest>& digests() const { return digests_; }
  std::string_view literals() const { return literals_; }
  // What means, sames and interleaves read.
  const std::vector<Rows>& operands() const { return operands_; }
  // The rows of inputs that an item of this plan reads: of copy and cast its own, else its
  // operands; none of low_rank.
  std::span<const Rows> sources_of(const CopyItem& item) const {
    if (item.op == Op::copy || item.op == Op::cast) return {&item.source, 1};
    return std::span(operands_).subspan(item.operand_begin, item.operand_count);
  }
  // What the operands of items `same` are, for their error.
  const std::vector<std::string>& texts() const { return texts_; }
  // The terms of weighted items, which share them.
  const std::vector<std::vector<PlannedTerm>>& terms() const { return terms_; }

  const std::vector<PlannedUpdate>& updates() const { return updates_; }
  // What updates read, tensor by tensor: items to float32, whose `dst` is in the bytes of their
  // tensor as float32; `out` means nothing.
  const std::vector<CopyItem>& update_items() const { return update_items_; }
  std::span<const CopyItem> update_items(const ItemRange& range) const {
    return std::span(update_items_).subspan(range.begin, range.end - range.begin);
  }
  // Calls take(rows, count) for all rows of inputs that an item reads, and how many they are.
  template <typename F>
  void for_each_source(const CopyItem& item, F&& take) const {
    if (item.op == Op::low_rank) {
      const PlannedUpdate& update = updates_[item.what];
      for (const ItemRange& range :
           {update.base, update.left.items, update.right.items, update.magnitude}) {
        for (const CopyItem& read : update_items(range)) for_each_source(read, take);
      }
      return;
    }
    for (const Rows& rows : sources_of(item)) take(rows, item.rows);
  }

  uint64_t bytes_written() const;
  uint64_t bytes_read() const;  // a byte that two items read counts twice
  // What is read for one element of an item before it is converted.
  uint64_t bytes_read_an_element(const CopyItem& item) const;

  // Every output byte written exactly once, every read inside its file (`inputs` indexed by
  // FileId), operands and literals inside the plan, digests and patches inside their file and
  // apart, output paths distinct, relative, without empty parts, "." and "..", and none below
  // another. Throws InconsistentError that names the output and the offset.
  void validate(const std::vector<PlannedInput>& inputs) const;

 private:
  friend class PlanBuilder;
  friend class PlanParts;
  std::vector<PlannedFile> outputs_;
  std::vector<CopyItem> items_;
  std::vector<Digest> digests_;
  std::string literals_;
  std::vector<Rows> operands_;
  std::vector<std::string> texts_;
  std::vector<std::vector<PlannedTerm>> terms_;
  std::vector<PlannedUpdate> updates_;
  std::vector<CopyItem> update_items_;
};

// Collects a plan. One thread. Offsets are absolute; order does not matter.
class PlanBuilder {
 public:
  OutputId add_output(std::string path, uint64_t size);
  // Throws UnsupportedError if the same few bytes were put in millions of pieces.
  void put(OutputId out, uint64_t dst, const TensorSource& source);
  void put_literal(OutputId out, uint64_t dst, std::string_view bytes);
  // Bytes that are put several times, in memory once: where they lie among the literals.
  Extent keep_literal(std::string_view bytes);
  void put_kept_literal(OutputId out, uint64_t dst, const Extent& kept);
  // So many bytes of literals will come: then they take no more memory than that.
  void expect_literals(uint64_t bytes);
  void add_digest(Digest digest);
  // Sorts the items. The builder is empty afterwards.
  CopyPlan finish();

 private:
  bool continues(const CopyItem& item, const SourceRun& run) const;
  bool has_terms(const CopyItem& item, const SourceRun& run) const;
  void extend(CopyItem& item, uint64_t bytes);
  void add_operands(CopyItem& item, const std::vector<Rows>& operands);
  uint32_t index_of(const std::string& text);
  uint32_t index_of_terms(const SourceRun& run);
  void append(std::vector<CopyItem>& items, OutputId out, uint64_t dst, const TensorSource& source);
  uint32_t index_of_update(const std::shared_ptr<const LowRankUpdate>& update);
  ItemRange add_update_items(const TensorSource& source);

  CopyPlan plan_;
  std::shared_ptr<const LowRankUpdate> update_;  // the newest of plan_.updates_
  KeyedMap<std::string, uint32_t> texts_;        // of plan_.texts_, to their indices
  static constexpr uint64_t kMostPieces = 1 << 21;
  PieceCount pieces_{kMostPieces};
};

}  // namespace dsckpt
