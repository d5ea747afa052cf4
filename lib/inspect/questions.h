// Questions: facts to find out in a pass over tensors and files. A question is data, so that it can
// be sent to the ranks of a run. Their answers are combined as if one process had read
// everything.
//
// A question about blocks of tensors has
//   Part             what is known of some elements; add(const Part&) of elements that come later
//   kKind            its number in the table of ask.cpp
//   kFolds           whether it does not matter how the parts of a tensor are added up
//   operator()       the part of one block
//   write, read      the question as bytes; write_part, read_part a part
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/difference.h"
#include "base/statistics.h"
#include "base/varint.h"
#include "inspect/blocks.h"

namespace dsckpt {

enum class QuestionKind : uint8_t {
  statistics = 1,
  difference,
  nonfinite,
  not_rounded,
};

using BlockBytes = std::vector<std::span<const std::byte>>;

struct StatisticsQuestion {
  using Part = Statistics;
  static constexpr QuestionKind kKind = QuestionKind::statistics;
  static constexpr bool kFolds = false;

  bool histogram = false;

  Part operator()(const PassItem& item, const Block& block, const BlockBytes& bytes) const;
  void write(VarintWriter& writer) const;
  static StatisticsQuestion read(VarintReader& reader);
  static void write_part(VarintWriter& writer, const Part& part);
  static Part read_part(VarintReader& reader);
};

// For items with two sources. PassItem::option is the DType in which they are compared.
struct DifferenceQuestion {
  using Part = Difference;
  static constexpr QuestionKind kKind = QuestionKind::difference;
  static constexpr bool kFolds = false;

  std::optional<Tolerance> tolerance = {};

  Part operator()(const PassItem& item, const Block& block, const BlockBytes& bytes) const;
  void write(VarintWriter& writer) const;
  static DifferenceQuestion read(VarintReader& reader);
  static void write_part(VarintWriter& writer, const Part& part);
  static Part read_part(VarintReader& reader);
};

// The number of NaN and Inf, and the index of the first.
struct Nonfinite {
  uint64_t nan = 0;
  uint64_t inf = 0;
  std::optional<int64_t> first = {};

  void add(const Nonfinite& other);
};
// PassItem::option is 1 for a tensor whose elements may be infinite.
struct NonfiniteQuestion {
  using Part = Nonfinite;
  static constexpr QuestionKind kKind = QuestionKind::nonfinite;
  static constexpr bool kFolds = true;

  Part operator()(const PassItem& item, const Block& block, const BlockBytes& bytes) const;
  void write(VarintWriter& writer) const;
  static NonfiniteQuestion read(VarintReader& reader);
  static void write_part(VarintWriter& writer, const Part& part);
  static Part read_part(VarintReader& reader);
};

// The first element that is not the rounding of its master.
struct NotRounded {
  std::optional<int64_t> first = {};

  void add(const NotRounded& other);
};
// For items with two sources: the weight, and its master. The master's type is the weight's or can
// be converted to it.
struct NotRoundedQuestion {
  using Part = NotRounded;
  static constexpr QuestionKind kKind = QuestionKind::not_rounded;
  static constexpr bool kFolds = true;

  Part operator()(const PassItem& item, const Block& block, const BlockBytes& bytes) const;
  void write(VarintWriter& writer) const;
  static NotRoundedQuestion read(VarintReader& reader);
  static void write_part(VarintWriter& writer, const Part& part);
  static Part read_part(VarintReader& reader);
};

}  // namespace dsckpt
