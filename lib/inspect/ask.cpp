#include "inspect/ask.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "base/bytes.h"
#include "base/kernels.h"
#include "base/sha256.h"
#include "exec/dispatch.h"
#include "exec/workers.h"
#include "plan/source_part.h"

namespace dsckpt {
namespace {

// What one rank reads at once, and what is given out as a whole: some seconds of a slow disk's.
constexpr uint64_t kPieceBytes = 16 << 20;
constexpr uint64_t kLongestTask = 512 << 20;

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
  RankJob job_{.questions = true};
  std::map<const InputFiles*, FileId> begins_;
};

// Has a group answer questions, of which rank 0 answers its own as the others do.
//
// A task is its batches, the kind of the question, and what it is about; its answer the batches and
// what came of each.
class Questions : public SharedWork {
 public:
  Questions(const JobInputs& inputs, QuestionKind kind, const Reading& reading)
      : inputs_(inputs), kind_(kind), reading_(reading), files_(inputs.job(), *reading.group) {}

  void run() {
    for (const Shares::Piece& piece : pieces_) reading_.progress.bytes_total += piece.bytes;
    Shares shares(pieces_, reading_.group->size(), kLongestTask);
    dispatch(*reading_.group, inputs_.job(), shares, *this, reading_.progress);
  }

  std::string task(const BatchRange& batches) const override {
    VarintWriter writer;
    writer.number(batches.first);
    writer.number(batches.last);
    writer.number(static_cast<uint64_t>(kind_));
    write_batches(writer, batches);
    return writer.take();
  }
  std::string work_on(const BatchRange& batches, Progress& progress) override {
    return answer_question(task(batches), files_, reading_.threads, progress);
  }
  Done absorb(std::string_view answer) override {
    VarintReader reader(answer);
    BatchRange batches{.first = reader.number()};
    batches.last = reader.number();
    take(batches, reader);
    Done done;
    for (uint64_t i = batches.first; i < batches.last; ++i) done.bytes_done += pieces_.at(i).bytes;
    done.bytes_read = done.bytes_done;
    return done;
  }

 protected:
  // In the order in which they are read.
  // `file`: the number of one that it reads, of the job's.
  void add_batch(uint64_t bytes, std::optional<FileId> file) {
    const uint64_t number = pieces_.size();
    pieces_.push_back({{number, number + 1}, bytes, file ? inputs_.job().inputs[*file].owner : -1});
  }
  virtual void write_batches(VarintWriter& writer, const BatchRange& batches) const = 0;
  virtual void take(const BatchRange& batches, VarintReader& answer) = 0;

  const JobInputs& inputs_;

 private:
  const QuestionKind kind_;
  const Reading& reading_;
  RankInputs files_;
  std::vector<Shares::Piece> pieces_;
};

// Files as a task numbers them, and what a rank opens of them.
std::function<FileId(FileId)> opening(RankInputs& inputs) {
  return [&inputs](FileId file) { return inputs.open(file); };
}

class BlockQuestions : public Questions {
 public:
  BlockQuestions(const JobInputs& inputs, const std::vector<PassItem>& items, QuestionKind kind,
                 std::string_view question, const Reading& reading, const OnAnswer& on_answer)
      : Questions(inputs, kind, reading),
        items_(items),
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
        add_batch((end - first * whole) * element_bytes,
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

  void write_batches(VarintWriter& writer, const BatchRange& batches) const override {
    std::vector<Run> runs;
    for (uint64_t i = batches.first; i < batches.last; ++i) {
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

  void take(const BatchRange&, VarintReader& answer) override {
    while (!answer.at_end()) {
      const size_t item = answer.number();
      const size_t first = answer.number();
      const size_t count = answer.number();
      if (item >= items_.size()) throw CorruptError({}, "an answer about nothing");
      on_answer_(item, first, count, answer);
    }
  }

  const std::vector<PassItem>& items_;
  const std::string question_;
  const OnAnswer& on_answer_;
  std::vector<Run> runs_;  // of each batch
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

std::string crc32_of(uint32_t crc) {
  std::string bytes;
  append_le<uint32_t>(bytes, crc);
  return bytes;
}

// Of one extent, piece by piece.
std::string sum_of(const InputFile& file, const Extent& extent, QuestionKind kind,
                   Progress& progress) {
  constexpr uint64_t kBufferBytes = 256 << 10;  // as many as fit the caches of a core
  thread_local std::vector<std::byte> buffer(kBufferBytes);
  uint32_t crc = 0;
  Sha256 sha256;
  for (uint64_t at = 0; at < extent.size; at += kBufferBytes) {
    if (progress.cancelled) throw InterruptedError();
    const std::span<std::byte> piece =
        std::span(buffer).first(std::min<uint64_t>(kBufferBytes, extent.size - at));
    file.read_at(extent.offset + at, piece);
    if (kind == QuestionKind::crc32) {
      crc = crc32(crc, piece);
    } else {
      sha256.update(piece);
    }
    progress.bytes_done += piece.size();
  }
  if (kind == QuestionKind::crc32) return crc32_of(crc);
  const Sha256Digest digest = sha256.digest();
  return std::string(as_text(ByteSpan(digest)));
}

void sum_here(const InputFiles& inputs, std::span<const Extent> extents, QuestionKind kind,
              unsigned threads, Progress& progress, const OnSum& on_sum) {
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  run_workers(threads, [&] {
    try {
      for (size_t i = next++; i < extents.size() && !failed; i = next++) {
        std::string sum;
        try {
          sum = sum_of(inputs[extents[i].file], extents[i], kind, progress);
        } catch (const Error& error) {
          if (error.kind() == ErrorKind::interrupted) throw;
          on_sum(i, {}, &error);
          continue;
        }
        on_sum(i, sum, nullptr);
      }
    } catch (...) {
      failed = true;
      throw;
    }
  });
}

class ExtentQuestions : public Questions {
 public:
  ExtentQuestions(const JobInputs& inputs, const InputFiles& files, std::span<const Extent> extents,
                  QuestionKind kind, const Reading& reading, const OnSum& on_sum)
      : Questions(inputs, kind, reading), files_(files), extents_(extents), on_sum_(on_sum) {
    for (const Extent& extent : extents) {
      add_batch(extent.size, inputs.number_of(files, extent.file));
    }
  }

 private:
  void write_batches(VarintWriter& writer, const BatchRange& batches) const override {
    for (uint64_t i = batches.first; i < batches.last; ++i) {
      writer.number(inputs_.number_of(files_, extents_[i].file));
      writer.number(extents_[i].offset);
      writer.number(extents_[i].size);
    }
  }

  void take(const BatchRange& batches, VarintReader& answer) override {
    if (batches.last > extents_.size()) throw CorruptError({}, "an answer about nothing");
    for (uint64_t i = batches.first; i < batches.last; ++i) {
      const bool failed = answer.number() != 0;
      const std::string text = answer.text();
      if (!failed) {
        on_sum_(i, text, nullptr);
        continue;
      }
      try {
        throw_failure(text, {});
      } catch (const Error& error) {
        on_sum_(i, {}, &error);
      }
    }
  }

  const InputFiles& files_;
  const std::span<const Extent> extents_;
  const OnSum& on_sum_;
};

void answer_about_extents(const BatchRange& batches, QuestionKind kind, VarintReader& reader,
                          RankInputs& inputs, unsigned threads, Progress& progress,
                          VarintWriter& answer) {
  std::vector<Extent> extents;
  const auto open = opening(inputs);
  for (uint64_t i = batches.first; i < batches.last; ++i) {
    Extent extent{.file = open(static_cast<FileId>(reader.number()))};
    extent.offset = reader.number();
    extent.size = reader.number();
    extents.push_back(extent);
  }
  std::vector<std::pair<bool, std::string>> sums(extents.size());
  sum_here(inputs.files(), extents, kind, threads, progress,
           [&](size_t i, std::string_view sum, const Error* failure) {
             sums[i] = failure == nullptr ? std::pair(false, std::string(sum))
                                          : std::pair(true, encode_failure(*failure));
           });
  for (const auto& [failed, text] : sums) {
    answer.number(failed ? 1 : 0);
    answer.text(text);
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

void sum_extents(const InputFiles& inputs, std::span<const Extent> extents, QuestionKind kind,
                 const Reading& reading, const OnSum& on_sum) {
  if (reading.group == nullptr) {
    for (const Extent& extent : extents) reading.progress.bytes_total += extent.size;
    return sum_here(inputs, extents, kind, reading.threads, reading.progress, on_sum);
  }
  JobInputs of_job;
  of_job.add(inputs);
  ExtentQuestions(of_job, inputs, extents, kind, reading, on_sum).run();
}

std::string answer_question(std::string_view question, RankInputs& inputs, unsigned threads,
                            Progress& progress) {
  VarintReader reader(question);
  BatchRange batches{.first = reader.number()};
  batches.last = reader.number();
  const auto kind = static_cast<QuestionKind>(reader.number());
  VarintWriter answer;
  answer.number(batches.first);
  answer.number(batches.last);
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
    case QuestionKind::crc32:
    case QuestionKind::sha256:
      answer_about_extents(batches, kind, reader, inputs, threads, progress, answer);
      break;
    default:
      throw CorruptError({}, "a question that nobody knows");
  }
  return answer.take();
}

}  // namespace dsckpt
