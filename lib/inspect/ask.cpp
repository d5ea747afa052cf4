#include "inspect/ask.h"

#include <algorithm>
#include <map>
#include <utility>

#include "exec/piece_work.h"
#include "plan/source_part.h"

namespace dsckpt {
namespace {

// All files of all items as the inputs of one job.
class JobInputs {
 public:
  void add(const InputFiles& files) {
    if (!begins_.emplace(&files, static_cast<FileId>(job_.inputs.size())).second) return;
    job_.add_inputs(files);
  }
  FileId number_of(const InputFiles& files, FileId file) const { return begins_.at(&files) + file; }
  const RankJob& job() const { return job_; }

 private:
  RankJob job_{.tasks = Tasks::questions};
  std::map<const InputFiles*, FileId> begins_;
};

// Files as a task numbers them, and what a rank opens of them.
std::function<FileId(FileId)> opening(RankInputs& inputs) {
  return [&inputs](FileId file) { return inputs.open(file); };
}

// Blocks of the items, some at once.
class BlockQuestions : public PieceWork {
 public:
  BlockQuestions(const JobInputs& inputs, const std::vector<PassItem>& items, QuestionKind kind,
                 std::string_view question, const Reading& reading, const OnAnswer& on_answer)
      : PieceWork(inputs.job(), reading),
        inputs_(inputs),
        items_(items),
        kind_(kind),
        threads_(reading.threads),
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
  // Of an element.
  std::optional<FileId> file_of(const PassSource& source, int64_t at) const {
    std::optional<FileId> file;
    source.value.lower(at, 1, [&](const SourceRun& run) {
      if (!run.sources().empty()) {
        file = inputs_.number_of(*source.inputs, run.sources().front().file);
      }
    });
    return file;
  }

  // Blocks [first, first + count) of an item.
  struct Run {
    size_t item;
    size_t first;
    size_t count;
  };

  void write_task(VarintWriter& writer, const BatchRange& pieces) const override {
    writer.number(static_cast<uint64_t>(kind_));
    std::vector<Run> runs;
    for (uint64_t i = pieces.first; i < pieces.last; ++i) {
      if (!runs.empty() && runs.back().item == runs_[i].item) {
        runs.back().count += runs_[i].count;
      } else {
        runs.push_back(runs_[i]);
      }
    }
    writer.text(question_);
    writer.number(runs.size());
    for (const Run& run : runs) {
      const PassItem& item = items_[run.item];
      const int64_t whole = block_elements(item);
      const int64_t first = static_cast<int64_t>(run.first) * whole;
      const int64_t count =
          std::min(static_cast<int64_t>(run.count) * whole, elements_of(item) - first);
      writer.number(run.item);
      writer.number(run.first);
      writer.text(item.label);
      writer.number(item.option);
      writer.number(item.sources.size());
      for (const PassSource& source : item.sources) {
        write_source(writer, source.value, first, count,
                     [&](FileId file) { return inputs_.number_of(*source.inputs, file); });
      }
    }
  }

  std::string answer(std::string_view task, RankInputs& inputs, Progress& progress) override {
    return answer_question(task, inputs, threads_, progress);
  }

  void take(const BatchRange&, VarintReader& answer) override {
    while (!answer.at_end()) {
      const size_t item = answer.number();
      const size_t first = answer.number();
      const size_t count = answer.number();
      if (item >= items_.size()) throw CorruptError({}, "an answer about nothing");
      on_answer_(item, first, count, answer);
    }
  }

  const JobInputs& inputs_;
  const std::vector<PassItem>& items_;
  const QuestionKind kind_;
  const unsigned threads_;
  const std::string question_;
  const OnAnswer& on_answer_;
  std::vector<Run> runs_;  // of each piece
};

template <typename Question>
void answer_about_blocks(VarintReader& reader, RankInputs& inputs, unsigned threads,
                         Progress& progress, VarintWriter& answer) {
  using Part = typename Question::Part;
  const std::string text = reader.text();
  VarintReader question_text(text);
  const Question question = Question::read(question_text);
  std::vector<PassItem> items(reader.count());
  std::vector<size_t> numbers;
  std::vector<std::vector<Part>> parts;
  for (PassItem& item : items) {
    numbers.push_back(reader.number());
    item.first_block = reader.number();
    item.label = reader.text();
    item.option = reader.number();
    for (size_t left = reader.count(); left > 0; --left) {
      item.sources.push_back({&inputs.files(), read_source(reader, opening(inputs))});
    }
    const int64_t whole = block_elements(item);
    parts.emplace_back(static_cast<size_t>((elements_of(item) + whole - 1) / whole));
  }
  read_blocks(items, threads, progress, [&](const Block& block, const BlockBytes& bytes) {
    const PassItem& item = items[block.item];
    parts[block.item][block.number - item.first_block] = question(item, block, bytes);
  });
  for (size_t i = 0; i < items.size(); ++i) {
    if constexpr (Question::kFolds) {
      Part sum;
      for (const Part& part : parts[i]) sum.add(part);
      answer.number(numbers[i]);
      answer.number(items[i].first_block);
      answer.number(parts[i].size());
      Question::write_part(answer, sum);
    } else {
      for (size_t block = 0; block < parts[i].size(); ++block) {
        answer.number(numbers[i]);
        answer.number(items[i].first_block + block);
        answer.number(1);
        Question::write_part(answer, parts[i][block]);
      }
    }
  }
}

}  // namespace

void ask_group(const std::vector<PassItem>& items, QuestionKind kind, std::string_view question,
               const Reading& reading, const OnAnswer& on_answer) {
  JobInputs inputs;
  for (const PassItem& item : items) {
    for (const PassSource& source : item.sources) inputs.add(*source.inputs);
  }
  BlockQuestions(inputs, items, kind, question, reading, on_answer).run();
}

std::string answer_question(std::string_view question, RankInputs& inputs, unsigned threads,
                            Progress& progress) {
  VarintReader reader(question);
  const BatchRange pieces = read_range(reader);
  const auto kind = static_cast<QuestionKind>(reader.number());
  VarintWriter answer;
  write_range(answer, pieces);
  switch (kind) {
    case QuestionKind::statistics:
      answer_about_blocks<StatisticsQuestion>(reader, inputs, threads, progress, answer);
      break;
    case QuestionKind::difference:
      answer_about_blocks<DifferenceQuestion>(reader, inputs, threads, progress, answer);
      break;
    case QuestionKind::nonfinite:
      answer_about_blocks<NonfiniteQuestion>(reader, inputs, threads, progress, answer);
      break;
    case QuestionKind::not_rounded:
      answer_about_blocks<NotRoundedQuestion>(reader, inputs, threads, progress, answer);
      break;
    default:
      throw CorruptError({}, "a question that nobody knows");
  }
  return answer.take();
}

}  // namespace dsckpt
