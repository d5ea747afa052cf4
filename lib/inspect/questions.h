// Questions: facts to find out in a pass over tensors and files. A question is data, so that it can
// be sent to the ranks of a run. Their answers are combined as if one process had read
// everything.
//
// A question about blocks of tensors has
//   Part             what is known of some elements; add(const Part&) of elements that come later
//   kKind            its number in the table of ask.cpp
//   kFolds           whether it does not matter how the parts of a tensor are added up
//   operator()       the part of one block
//   fields           of the question, and fields_of_part of a part (base/varint.h)
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

// Two float64 hold every value of an Exact.
void code(VarintWriter& writer, Exact value);
void code(VarintReader& reader, Exact& value);

using BlockBytes = std::vector<std::span<const std::byte>>;

struct StatisticsQuestion {
  using Part = Statistics;
  static constexpr QuestionKind kKind = QuestionKind::statistics;
  static constexpr bool kFolds = false;

  bool histogram = false;

  Part operator()(const PassItem& item, const Block& block, const BlockBytes& bytes) const;
  static void fields(auto& codec, auto& self) { codec(self.histogram); }
  static void fields_of_part(auto& codec, auto& part) {
    codec(part.count, part.zeros, part.nans, part.positive_infinities, part.negative_infinities,
          part.min, part.max, part.mean, part.squared_deviations, part.histogram.negative,
          part.histogram.positive);
  }
};

// For items with two sources. PassItem::option is the DType in which they are compared.
struct DifferenceQuestion {
  using Part = Difference;
  static constexpr QuestionKind kKind = QuestionKind::difference;
  static constexpr bool kFolds = false;

  std::optional<Tolerance> tolerance = {};

  Part operator()(const PassItem& item, const Block& block, const BlockBytes& bytes) const;
  static void fields(auto& codec, auto& self) { codec(self.tolerance); }
  static void fields_of_part(auto& codec, auto& part) {
    codec(part.count, part.differing, part.outside, part.max_ulps, part.max_relative, part.index);
    code(codec, part.max_absolute);
    code(codec, part.a);
    code(codec, part.b);
    codec(part.squared_change, part.squared_a, part.squared_b, part.product);
  }
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
  static void fields(auto&, auto&) {}
  static void fields_of_part(auto& codec, auto& part) { codec(part.nan, part.inf, part.first); }
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
  static void fields(auto&, auto&) {}
  static void fields_of_part(auto& codec, auto& part) { codec(part.first); }
};

}  // namespace dsckpt
