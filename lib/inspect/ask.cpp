#include "inspect/ask.h"

#include <algorithm>

#include "exec/piece_work.h"
#include "plan/source_part.h"

namespace dsckpt {
namespace {

// Returns a function from the file numbers of a task to the files that a rank opened.
std::function<FileId(FileId)> opening(RankInputs& inputs) {
  return [&inputs](FileId file) { return inputs.open(file); };
}

// Asks the question about blocks of the items, several in each piece.
class BlockQuestions : public PieceWork {
 public:
  BlockQuestions(const std::vector<PassItem>& items, QuestionKind kind, std::string_view question,
                 const Reading& reading, const OnAnswer& on_answer)
      : PieceWork(PieceKind::questions, reading),
        items_(items),
        kind_(kind),
        question_(question),
        on_answer_(on_answer) {
    for (const size_t item : reading_order(items)) {
      const auto elements = static_cast<uint64_t>(elements_of(items[item]));
      if (elements == 0) continue;
      const auto whole = static_cast<uint64_t>(block_elements(items[item]));
      const uint64_t element_bytes = bytes_of(items[item]) / elements;
      const uint64_t blocks = (elements + whole - 1) / whole;
      const uint64_t at_once = std::max<uint64_t>(kPieceBytes / (whole * element_bytes), 1);
      for (uint64_t first = 0; first < blocks; first += at_once) {
        const uint64_t count = std::min(at_once, blocks - first);
        runs_.push_back({item, first, count});
        const uint64_t end = std::min((first + count) * whole, elements);
        add_piece((end - first * whole) * element_bytes,
                  file_of(items[item].sources.front(), static_cast<int64_t>(first * whole)));
      }
    }
  }

 private:
  // Returns the file of an element.
  std::optional<FileId> file_of(const PassSource& source, int64_t at) {
    std::optional<FileId> file;
    source.value.lower(at, 1, [&](const SourceRun& run) {
      if (!run.sources().empty()) file = number_of(*source.inputs, run.sources().front().file);
    });
    return file;
  }

  // Blocks [first, first + count) of an item.
  struct Run {
    size_t item;
    size_t first;
    size_t count;
  };

  void write_question(VarintWriter& question) const override {
    question.one_of(kind_, QuestionKind::not_rounded);
    question(question_);
  }

  void write_piece(VarintWriter& text, uint64_t piece) override {
    const Run& run = runs_[piece];
    const PassItem& item = items_[run.item];
    const int64_t whole = block_elements(item);
    const int64_t first = static_cast<int64_t>(run.first) * whole;
    const int64_t count =
        std::min(static_cast<int64_t>(run.count) * whole, elements_of(item) - first);
    text(run.first, item.label, item.option, item.sources.size());
    for (const PassSource& source : item.sources) {
      write_source(text, source.value, first, count,
                   [&](FileId file) { return number_of(*source.inputs, file); });
    }
  }

  std::string answer(std::string_view task, RankInputs& inputs, unsigned threads,
                     Progress& progress) override {
    return answer_question(task, inputs, threads, progress);
  }

  void take(uint64_t piece, VarintReader& answer) override {
    const Run& run = runs_[piece];
    for (size_t block = run.first; !answer.at_end();) {
      const size_t count = answer.number();
      if (count == 0 || block + count > run.first + run.count) {
        throw CorruptError({}, "an answer without a subject");
      }
      on_answer_(run.item, block, count, answer);
      block += count;
    }
  }

  const std::vector<PassItem>& items_;
  const QuestionKind kind_;
  const std::string question_;
  const OnAnswer& on_answer_;
  std::vector<Run> runs_;  // of each piece
};

// The answer has the number of blocks of each part, and the part.
template <typename Question>
std::string answer_about_blocks(const PieceTask& task, VarintReader& question_text,
                                RankInputs& inputs, unsigned threads, Progress& progress) {
  using Part = typename Question::Part;
  Question question;
  question_text(question);
  std::vector<PassItem> items(task.pieces.size());
  std::vector<std::vector<Part>> parts;
  for (size_t i = 0; i < items.size(); ++i) {
    PassItem& item = items[i];
    VarintReader reader(task.pieces[i]);
    reader(item.first_block, item.label, item.option);
    for (size_t left = reader.count(); left > 0; --left) {
      item.sources.push_back({&inputs.files(), read_source(reader, opening(inputs))});
    }
    if (item.sources.empty()) throw CorruptError({}, "a question about nothing");
    const int64_t whole = block_elements(item);
    parts.emplace_back(static_cast<size_t>((elements_of(item) + whole - 1) / whole));
  }
  read_blocks(items, threads, progress, [&](const Block& block, const BlockBytes& bytes) {
    const PassItem& item = items[block.item];
    parts[block.item][block.number - item.first_block] = question(item, block, bytes);
  });
  std::vector<std::string> answers;
  for (const std::vector<Part>& of_piece : parts) {
    VarintWriter answer;
    if constexpr (Question::kFolds) {
      Part sum;
      for (const Part& part : of_piece) sum.add(part);
      answer.number(of_piece.size());
      Question::fields_of_part(answer, sum);
    } else {
      for (const Part& part : of_piece) {
        answer.number(1);
        Question::fields_of_part(answer, part);
      }
    }
    answers.push_back(answer.take());
  }
  return encode_answers(answers);
}

}  // namespace

void ask_readers(const std::vector<PassItem>& items, QuestionKind kind, std::string_view question,
                 const Reading& reading, const OnAnswer& on_answer) {
  BlockQuestions(items, kind, question, reading, on_answer).run();
}

std::string answer_question(std::string_view bytes, RankInputs& inputs, unsigned threads,
                            Progress& progress) {
  const PieceTask task = PieceTask::decode(bytes);
  VarintReader reader(task.question);
  const auto kind = static_cast<QuestionKind>(reader.number());
  const std::string text = reader.text();
  VarintReader question(text);
  switch (kind) {
    case QuestionKind::statistics:
      return answer_about_blocks<StatisticsQuestion>(task, question, inputs, threads, progress);
    case QuestionKind::difference:
      return answer_about_blocks<DifferenceQuestion>(task, question, inputs, threads, progress);
    case QuestionKind::nonfinite:
      return answer_about_blocks<NonfiniteQuestion>(task, question, inputs, threads, progress);
    case QuestionKind::not_rounded:
      return answer_about_blocks<NotRoundedQuestion>(task, question, inputs, threads, progress);
    default:
      throw CorruptError({}, "an unknown question");
  }
}

}  // namespace dsckpt
