// CopyPlan: every byte of every output file, decided before the first one is written.
//
// Plain data. An output file is tiled by items: copied or cast pieces of input files, literal bytes
// and zeros. Once validate() has passed, nothing is left to decide; running the plan only moves
// bytes. Items have absolute offsets, and no item reads the output of another. So they can run in
// any order, on any number of threads, and the result is always the same.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
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
inline constexpr Op kLastOp = Op::low_rank;
inline constexpr DType kLastDType = static_cast<DType>(kDTypeCount - 1);

// One line of the plan: `rows` rows, written one after the other into [dst, dst + dst_size). Plans
// have millions of them.
struct CopyItem {
  Op op = Op::copy;
  DType from = DType::uint8;  // element types; equal for copy, literal and zeros
  DType to = DType::uint8;
  OutputId out = 0;
  uint64_t dst = 0;  // bytes from the start of the output
  uint64_t rows = 1;
  // The rows of a copy or cast in the input, or of a literal in CopyPlan::literals(). For the other
  // operations only row_bytes has a meaning. Zeros have one row. The operands of mean and same are
  // one row of that length each. The operands of interleave are its columns, with as many rows as
  // the item; row_bytes is the sum of theirs. A low_rank item has one row, and `source.offset` is
  // the first element of its update, in elements.
  Rows source;
  // The inputs of mean, same, interleave and weighted: a range of CopyPlan::operands(). Two or
  // more, except for mean and weighted.
  uint32_t operand_begin = 0;
  uint32_t operand_count = 0;
  // An index: for same into CopyPlan::texts, for weighted into CopyPlan::terms, for low_rank into
  // CopyPlan::updates.
  uint32_t what = 0;

  uint64_t dst_row_bytes() const { return source.row_bytes / size_of(from) * size_of(to); }
  uint64_t dst_size() const { return rows * dst_row_bytes(); }
  uint64_t dst_end() const { return dst + dst_size(); }
  bool reads_input() const { return op != Op::literal && op != Op::zeros; }
};

// A tensor that is averaged by a weighted item (WeightedTerm).
struct PlannedTerm {
  double weight = 1;
  double share = 1;
  DType stored = DType::float32;
  Op op = Op::copy;       // copy, mean or same: what is made of its operands
  uint32_t operands = 1;  // that many of the item's, after those of the terms before
  uint32_t what = 0;      // of same: index into CopyPlan::texts

  bool operator==(const PlannedTerm&) const = default;
  static void fields(auto& codec, auto& self) {
    codec(self.weight, self.share);
    codec.one_of(self.stored, kLastDType);
    codec.one_of(self.op, kLastOp);
    codec(self.operands, self.what);
  }
};

// Items [begin, end) of CopyPlan::update_items().
struct ItemRange {
  uint32_t begin = 0;
  uint32_t end = 0;

  bool empty() const { return begin == end; }
  static void fields(auto& codec, auto& self) { codec(self.begin, self.end); }
};

// A LowRankUpdate, with its tensors as items. The range of a left factor or magnitude that does not
// exist is empty.
struct PlannedUpdate {
  struct Factor {
    ItemRange items;
    uint64_t batch_stride = 0;
    uint64_t row_stride = 0;
    uint64_t column_stride = 0;

    static void fields(auto& codec, auto& self) {
      codec(self.items, self.batch_stride, self.row_stride, self.column_stride);
    }
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
  static void fields(auto& codec, auto& self) {
    codec(self.batches, self.rows, self.columns, self.rank, self.left, self.right, self.scale,
          self.base, self.magnitude, self.norms_of_columns);
  }
};

// An output file: its path relative to the output folder, and its exact size.
struct PlannedFile {
  std::string path;
  uint64_t size = 0;

  static void fields(auto& codec, auto& self) { codec(self.path, self.size); }
};
// Throws InconsistentError for a path that does not lie inside the output folder, and for two paths
// that cannot both exist.
void check_paths(const std::vector<PlannedFile>& outputs);

// "The CRC32 of output bytes [begin, end) belongs, little-endian, at `patches`": a zip holds the
// checksum of its data. A digest's range begins and ends where items do. The patches lie outside
// all ranges, and overwrite the bytes that items put there (exec/patches.h). Ranges of one output
// do not overlap.
struct Digest {
  OutputId out = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  std::vector<uint64_t> patches;

  static void fields(auto& codec, auto& self) {
    codec(self.out, self.begin, self.end, self.patches);
  }
};

// An input file of the plan: its name for messages and the length that it must have.
struct PlannedInput {
  std::string display;
  uint64_t size = 0;
};

// A record of an input whose CRC32 is known. The executor checks every record that the plan reads
// whole.
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
  // The rows that means, sames and interleaves read.
  const std::vector<Rows>& operands() const { return operands_; }
  // The rows of inputs that an item of this plan reads: its own for copy and cast, else its
  // operands. None for low_rank.
  std::span<const Rows> sources_of(const CopyItem& item) const {
    if (item.op == Op::copy || item.op == Op::cast) return {&item.source, 1};
    return std::span(operands_).subspan(item.operand_begin, item.operand_count);
  }
  // Descriptions of the operands of `same` items, for their error.
  const std::vector<std::string>& texts() const { return texts_; }
  // The terms of weighted items; items may share them.
  const std::vector<std::vector<PlannedTerm>>& terms() const { return terms_; }

  const std::vector<PlannedUpdate>& updates() const { return updates_; }
  // The reads of updates, tensor by tensor: items that make float32. Their `dst` is an offset in
  // their tensor as float32; `out` has no meaning.
  const std::vector<CopyItem>& update_items() const { return update_items_; }
  std::span<const CopyItem> update_items(const ItemRange& range) const {
    return std::span(update_items_).subspan(range.begin, range.end - range.begin);
  }
  // Calls take(rows, count) for all rows of inputs that an item reads; count is the number of rows.
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
  // Bytes read for one element of an item, before conversion.
  uint64_t bytes_read_an_element(const CopyItem& item) const;

  // Checks that every output byte is written exactly once, and every read lies inside its file
  // (`inputs` are indexed by FileId). Operands and literals must lie in the plan, digests and
  // patches inside their file, without overlaps. Output paths must be distinct and relative,
  // without empty parts, "." and "..", and none below another. Throws InconsistentError that names
  // the output and the offset.
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

// Collects the items of a plan, in any order. One thread. Offsets are absolute.
class PlanBuilder {
 public:
  OutputId add_output(std::string path, uint64_t size);
  // The outputs that were added.
  const std::vector<PlannedFile>& outputs() const { return plan_.outputs(); }
  // Throws UnsupportedError if the same few bytes are put as millions of pieces.
  void put(OutputId out, uint64_t dst, const TensorSource& source);
  void put_literal(OutputId out, uint64_t dst, std::string_view bytes);
  // Stores bytes that are put several times only once. Returns their place among the literals.
  Extent keep_literal(std::string_view bytes);
  void put_kept_literal(OutputId out, uint64_t dst, const Extent& kept);
  // Reserves memory for so many bytes of literals, so that they take no more than that.
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
  std::map<std::shared_ptr<const LowRankUpdate>, uint32_t> updates_;  // to plan_.updates_
  KeyedMap<std::string, uint32_t> texts_;                             // to plan_.texts_
  static constexpr uint64_t kMostPieces = 1 << 21;
  PieceCount pieces_{kMostPieces};
};

}  // namespace dsckpt
