// Asking: this process, or others with it, answer questions.
//
// Their answers are combined as if one process had read everything.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/varint.h"
#include "dsckpt/run.h"
#include "exec/rank_inputs.h"
#include "exec/reading.h"
#include "inspect/blocks.h"
#include "inspect/questions.h"

namespace dsckpt {

// Receives answers by items and blocks: blocks [first, first + count) of an item, and the reader of
// a part.
using OnAnswer = std::function<void(size_t item, size_t first, size_t count, VarintReader& part)>;
void ask_readers(const std::vector<PassItem>& items, QuestionKind kind, std::string_view question,
                 const Reading& reading, const OnAnswer& on_answer);

// The answer for each item; an empty part for an item without elements, and for all if
// `reading` only plans. Throws as read_blocks and check_sizes.
template <typename Question>
std::vector<typename Question::Part> ask(const std::vector<PassItem>& items,
                                         const Question& question, const Reading& reading) {
  using Part = typename Question::Part;
  check_sizes(items);
  InOrder<Part> folded(items.size());
  if (reading.readers == nullptr) {
    for (const PassItem& item : items) reading.progress.bytes_total += bytes_of(item);
    read_blocks(
        items, reading.threads, reading.progress, [&](const Block& block, const BlockBytes& bytes) {
          folded.add(block.item, block.number, 1, question(items[block.item], block, bytes));
        });
  } else {
    ask_readers(items, Question::kKind, encoded(question), reading,
                [&](size_t item, size_t first, size_t count, VarintReader& answer) {
                  Part part;
                  Question::fields_of_part(answer, part);
                  folded.add(item, first, count, std::move(part));
                });
  }
  std::vector<Part> parts;
  for (size_t i = 0; i < items.size(); ++i) parts.push_back(folded.take(i));
  return parts;
}

// Answers any of these questions, for follow().
std::string answer_question(std::string_view question, RankInputs& inputs, unsigned threads,
                            Progress& progress);

}  // namespace dsckpt
