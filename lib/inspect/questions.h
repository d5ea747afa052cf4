// Questions: what passes over tensors and files find out of them. A question is data, so that the
// ranks of a group can be asked it; what they answer is put together as if one process had read
// all.
//
// A question about blocks of tensors has
//   Part             what is known of some elements; add(const Part&) of elements that come later
//   kKind            its number in the table of questions.cpp
//   kFolds           whether it does not matter how the parts of a tensor are added up
//   operator()       the part of one block
//   write, read      the question as bytes; write_part, read_part a part
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/difference.h"
#include "base/statistics.h"
#include "base/varint.h"
#include "dsckpt/error.h"
#include "exec/rank_inputs.h"
#include "group/group.h"
#include "inspect/blocks.h"

namespace dsckpt {

// Who reads.
struct Reading {
  unsigned threads = 0;  // 0: default_threads()
  Progress& progress;
  Group* group = nullptr;  // of which this is rank 0: all its ranks read
};

enum class QuestionKind : uint8_t {
  statistics = 1,
  difference,
  nonfinite,
  not_rounded,
  crc32,   // of extents
  sha256,  // of extents
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

// Of items with two sources. PassItem::option is the DType that they are compared as.
struct DifferenceQuestion {
  using Part = Difference;
  static constexpr QuestionKind kKind = QuestionKind::difference;
  static constexpr bool kFolds = true;

  std::optional<Tolerance> tolerance = {};

  Part operator()(const PassItem& item, const Block& block, const BlockBytes& bytes) const;
  void write(VarintWriter& writer) const;
  static DifferenceQuestion read(VarintReader& reader);
  static void write_part(VarintWriter& writer, const Part& part);
  static Part read_part(VarintReader& reader);
};

// How many NaN and Inf there are, and the index of the first.
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
// Of items with two sources, the weight and its master, whose type is the weight's or can be
// converted to it.
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

// Answers by items and blocks: blocks [first, first + count) of an item, and the reader of a part.
using OnAnswer = std::function<void(size_t item, size_t first, size_t count, VarintReader& part)>;
void ask_group(const std::vector<PassItem>& items, QuestionKind kind, std::string_view question,
               const Reading& reading, const OnAnswer& on_answer);

// The answer for each item; of an item without elements an empty part. Throws as read_blocks does.
template <typename Question>
std::vector<typename Question::Part> ask(const std::vector<PassItem>& items,
                                         const Question& question, const Reading& reading) {
  using Part = typename Question::Part;
  InOrder<Part> folded(items.size());
  if (reading.group == nullptr) {
    read_blocks(
        items, reading.threads, reading.progress, [&](const Block& block, const BlockBytes& bytes) {
          folded.add(block.item, block.number, 1, question(items[block.item], block, bytes));
        });
  } else {
    VarintWriter writer;
    question.write(writer);
    ask_group(items, Question::kKind, writer.take(), reading,
              [&](size_t item, size_t first, size_t count, VarintReader& part) {
                folded.add(item, first, count, Question::read_part(part));
              });
  }
  std::vector<Part> parts;
  for (size_t i = 0; i < items.size(); ++i) parts.push_back(folded.take(i));
  return parts;
}

// The CRC32 (four bytes, little endian) or the SHA-256 of each extent, or why it cannot be read.
// `on_sum`: any thread, several at a time. Adds to progress.bytes_total.
using OnSum = std::function<void(size_t extent, std::string_view sum, const Error* failure)>;
void sum_extents(const InputFiles& inputs, std::span<const Extent> extents, QuestionKind kind,
                 const Reading& reading, const OnSum& on_sum);

// What follow() needs to answer any of them.
std::string answer_question(std::string_view question, RankInputs& inputs, unsigned threads,
                            Progress& progress);

}  // namespace dsckpt
