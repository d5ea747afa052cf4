#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <mutex>

#include "base/bytes.h"
#include "base/kernels.h"
#include "base/sha256.h"
#include "exec/answering.h"
#include "exec/extent_sums.h"
#include "exec/piece_task.h"
#include "exec/rank_readers.h"
#include "exec/step_readers.h"
#include "exec/step_work.h"
#include "inspect/ask.h"
#include "support/expect_error.h"
#include "support/plan_tools.h"
#include "support/random_inputs.h"
#include "support/thread_ranks.h"

namespace dsckpt {
namespace {

using enum DType;
using test::kMiB;

class QuestionsTest : public test::RandomInputsTest {
 protected:
  QuestionsTest() : RandomInputsTest(5 * kMiB + 24) {
    other_.add(folder_.write("other", contents_[0].substr(0, 4 * kMiB) + std::string(kMiB, '\0')));
    const auto flat = [](FileId file, uint64_t offset, uint64_t count) {
      return test::flat(file, offset, float32, count);
    };
    // Larger than a task, of blocks that are not whole, of two files, tiny, and empty.
    items_ = {item("whole", flat(0, 0, 5 << 18)), item("part", flat(1, 8, 100'001)),
              item("both", TensorSource::cat(0, {flat(1, 0, 300'000), flat(2, 4, 700'000)})),
              item("tiny", flat(2, 0, 3)), item("empty", TensorSource::zeros(float32, {0}))};
  }

  PassItem item(const char* name, const TensorSource& value) const {
    return {name, {{&inputs_, value}}};
  }

  // With as many ranks.
  template <typename Question>
  std::vector<typename Question::Part> asked(int ranks, const std::vector<PassItem>& items,
                                             const Question& question) {
    std::vector<typename Question::Part> parts;
    Progress progress;
    if (ranks == 1) {
      parts = ask(items, question, {2, progress});
    } else {
      test::run_ranks(ranks, answer_question, [&](Meeting& meeting) {
        RankReaders readers(meeting);
        parts = ask(items, question, {2, progress, &readers});
      });
    }
    EXPECT_EQ(progress.bytes_done, progress.bytes_total);
    EXPECT_GT(progress.bytes_total, 0u);
    return parts;
  }

  template <typename Question>
  static std::vector<std::string> texts(const std::vector<typename Question::Part>& parts) {
    std::vector<std::string> texts;
    for (const auto& part : parts) {
      VarintWriter writer;
      Question::fields_of_part(writer, part);
      texts.push_back(writer.take());
    }
    return texts;
  }

  // True if all ranks together answer as one process.
  template <typename Question>
  void expect_same_answers(const std::vector<PassItem>& items, const Question& question) {
    const auto text = texts<Question>;
    const std::vector<std::string> alone = text(asked(1, items, question));
    for (const int ranks : {2, 3, 7}) EXPECT_EQ(text(asked(ranks, items, question)), alone);
  }

  std::vector<PassItem> pairs() const {
    std::vector<PassItem> pairs;
    for (const uint64_t at : {uint64_t{0}, 3 * kMiB}) {
      const Extent extent{0, at, 2 * kMiB};
      pairs.push_back({"pair",
                       {{&inputs_, TensorSource::stored(extent, float32, {2 << 18})},
                        {&other_, TensorSource::stored(extent, float32, {2 << 18})}},
                       static_cast<uint64_t>(float32)});
    }
    return pairs;
  }

  InputFiles other_;
  std::vector<PassItem> items_;
};

TEST_F(QuestionsTest, StatisticsDoNotDependOnWhoReads) {
  expect_same_answers(items_, StatisticsQuestion{});
  expect_same_answers(items_, StatisticsQuestion{.histogram = true});
  const auto values = asked(3, items_, StatisticsQuestion{});
  EXPECT_EQ(values[0].count, 5u << 18);
  EXPECT_EQ(values[2].count, 1'000'000u);
  EXPECT_EQ(values[3].count, 3u);
  EXPECT_EQ(values[4].count, 0u);
}

TEST_F(QuestionsTest, DifferencesDoNotDependOnWhoReads) {
  expect_same_answers(pairs(), DifferenceQuestion{});
  expect_same_answers(pairs(), DifferenceQuestion{.tolerance = Tolerance{1e-3, 1e-2}});
  const auto differences = asked(3, pairs(), DifferenceQuestion{});
  EXPECT_EQ(differences[0].differing, 0u);
  EXPECT_EQ(differences[0].index, -1);
  // The last MiB is zeros there; random bits are hardly ever.
  EXPECT_NEAR(static_cast<double>(differences[1].differing), 1 << 18, 8);
}

TEST_F(QuestionsTest, WhatIsNotFiniteIsCountedByAll) {
  expect_same_answers(items_, NonfiniteQuestion{});
  uint64_t nan = 0;
  uint64_t inf = 0;
  std::optional<int64_t> first;
  for (size_t i = 0; i < size_t{5} << 18; ++i) {
    float value = 0;
    std::memcpy(&value, contents_[0].data() + i * sizeof value, sizeof value);
    nan += std::isnan(value);
    inf += std::isinf(value);
    if (!first && !std::isfinite(value)) first = static_cast<int64_t>(i);
  }
  items_[0].option = 0;
  const auto counts = asked(3, items_, NonfiniteQuestion{});
  EXPECT_EQ(counts[0].nan, nan);
  EXPECT_EQ(counts[0].inf, inf);
  EXPECT_EQ(counts[0].first, first);
}

TEST_F(QuestionsTest, TheFirstThatIsNotRoundedIsFoundByAll) {
  // bfloat16 that are the upper halves of float32 with nothing below, but for one.
  constexpr size_t kCount = 1 << 20;
  constexpr size_t kWrong = 777'777;
  std::string weights;
  std::string masters;
  for (size_t i = 0; i < kCount; ++i) {
    const auto upper = static_cast<uint16_t>(i * 37 % 0x7f00);
    append_le<uint16_t>(weights, upper);
    append_le<uint32_t>(masters, (uint32_t{upper} << 16) + (i == kWrong ? 0x18000 : 0));
  }
  const FileId weight = inputs_.add(folder_.write("weights", weights));
  const FileId master = inputs_.add(folder_.write("masters", masters));
  const std::vector<PassItem> items{
      {"weight",
       {{&inputs_, TensorSource::stored({weight, 0, weights.size()}, bfloat16, {kCount})},
        {&inputs_, TensorSource::stored({master, 0, masters.size()}, float32, {kCount})}}}};
  for (const int ranks : {1, 2, 3}) {
    EXPECT_EQ(asked(ranks, items, NotRoundedQuestion{})[0].first, std::optional<int64_t>(kWrong));
  }
  expect_same_answers(items, NotRoundedQuestion{});
}

TEST_F(QuestionsTest, SumsOfExtentsAreThoseOfTheirBytes) {
  std::vector<Extent> extents;
  for (FileId file = 0; file < 3; ++file) {
    for (uint64_t at = 0; at < 4 * kMiB; at += 700'001) extents.push_back({file, at, 400'000});
    extents.push_back({file, 17, 0});
    extents.push_back({file, 5 * kMiB, 4096});  // beyond the end
  }
  for (const int ranks : {1, 2, 3}) {
    for (const SumKind kind : {SumKind::crc32, SumKind::sha256}) {
      std::mutex mutex;
      std::vector<std::string> sums(extents.size());
      const auto on_sum = [&](size_t i, std::string_view sum, const Error* failure) {
        const std::lock_guard lock(mutex);
        ASSERT_EQ(sums[i], "");
        sums[i] = failure == nullptr ? std::string(sum) : failure->what();
      };
      Progress progress;
      if (ranks == 1) {
        sum_extents(inputs_, extents, kind, {2, progress}, on_sum);
      } else {
        test::run_ranks(ranks, answer_question, [&](Meeting& meeting) {
          RankReaders readers(meeting);
          sum_extents(inputs_, extents, kind, {2, progress, &readers}, on_sum);
        });
      }
      for (size_t i = 0; i < extents.size(); ++i) {
        if (extents[i].offset == 5 * kMiB) {
          EXPECT_NE(sums[i].find("input" + std::to_string(extents[i].file)), std::string::npos)
              << sums[i];
          continue;
        }
        const ByteSpan bytes =
            as_byte_span(contents_[extents[i].file]).subspan(extents[i].offset, extents[i].size);
        if (kind == SumKind::crc32) {
          EXPECT_EQ(load_le<uint32_t>(as_byte_span(sums[i]).data()), crc32(0, bytes));
        } else {
          Sha256 hash;
          hash.update(bytes);
          const Sha256Digest digest = hash.digest();
          EXPECT_EQ(sums[i], as_text(ByteSpan(digest)));
        }
      }
    }
  }
}

// Two passes in steps.
class StepsOfQuestionsTest : public QuestionsTest {
 protected:
  Folder planned(uint64_t portions) {
    PassPlanner planner;
    Progress progress;
    const Reading reading{2, progress, &planner};
    EXPECT_EQ(ask(items_, question_, reading)[0].count, 0u);
    sum_extents(inputs_, extents_, SumKind::crc32, reading,
                [](size_t, std::string_view, const Error*) { FAIL() << "nothing is read yet"; });
    const Planned planned =
        planner.save(folder_.path() / "steps", {.program = "dsckpt 1"}, portions);
    EXPECT_GE(planned.portions, std::min<uint64_t>(portions, 5));
    return find_planned(planned.folder).folder.value();
  }

  void work(const Folder& folder, size_t workers) {
    for (size_t number = 0; number < workers; ++number) {
      Progress progress;
      work_on_steps(folder, "dsckpt 1",
                    {.threads = 2,
                     .share = StepShare{number, 3},
                     .only_share = true,
                     .answer = answering(answer_question)},
                    progress);
      EXPECT_EQ(progress.bytes_done, progress.bytes_total);
    }
  }

  // The questions in the end: less than was planned, in another order, and something new.
  std::vector<PassItem> asked() const {
    return {items_[3], items_[0], item("new", test::flat(0, 64, float32, 1000))};
  }

  std::vector<std::string> answers(Readers* readers, const std::vector<PassItem>& items) {
    Progress progress;
    const Reading reading{2, progress, readers};
    std::vector<std::string> found = texts<StatisticsQuestion>(ask(items, question_, reading));
    std::vector<std::string> sums(extents_.size());
    sum_extents(inputs_, extents_, SumKind::crc32, reading,
                [&](size_t i, std::string_view sum, const Error*) { sums[i] = sum; });
    found.insert(found.end(), sums.begin(), sums.end());
    EXPECT_EQ(progress.bytes_done, progress.bytes_total);
    return found;
  }

  const StatisticsQuestion question_{.histogram = true};
  const std::vector<Extent> extents_{{0, 0, 3 * kMiB}, {1, 5, 0}, {2, 7, kMiB}};
};

TEST_F(StepsOfQuestionsTest, WhatNobodyHasAnsweredIsRead) {
  const std::vector<std::string> alone = answers(nullptr, asked());
  for (const uint64_t portions : {1u, 7u, 1000u}) {
    const Folder folder = planned(portions);
    for (const size_t workers : {0u, 1u, 3u}) {
      work(folder, workers);
      PassAnswers readers(folder);
      EXPECT_EQ(answers(&readers, asked()), alone) << portions << ", " << workers;
    }
    abandon_steps(find_planned(folder.path()));
  }
}

TEST_F(StepsOfQuestionsTest, WhatIsAnsweredIsNotReadAgain) {
  const std::vector<PassItem> fewer{items_[3], items_[0]};
  const std::vector<std::string> alone = answers(nullptr, fewer);
  const Folder folder = planned(7);
  work(folder, 3);
  for (FileId file = 0; file < inputs_.size(); ++file) {
    std::filesystem::remove(inputs_[file].path());
  }
  PassAnswers readers(folder);
  EXPECT_EQ(answers(&readers, fewer), alone);
  EXPECT_THROW(answers(&readers, asked()), IoError);
}

TEST_F(QuestionsTest, AFileThatIsAnotherOneElsewhereEndsAll) {
  folder_.write("input1", contents_[1] + "x");
  Progress progress;
  test::run_ranks(3, answer_question, [&](Meeting& meeting) {
    RankReaders readers(meeting);
    EXPECT_ERROR(ask(items_, StatisticsQuestion{}, {2, progress, &readers}), IoError,
                 "is not the same file here as on rank 0");
    // The ranks can be asked something else then.
    const std::vector<PassItem> first{items_[0]};
    EXPECT_EQ(ask(first, StatisticsQuestion{}, {2, progress, &readers})[0].count, 5u << 18);
  });
}

TEST_F(QuestionsTest, WhatNobodyKnowsIsRefused) {
  RankJob job{.tasks = Tasks::pieces};
  job.add_inputs(inputs_);
  RankInputs inputs(job, nullptr);
  Progress progress;
  EXPECT_THROW(answer_question("", inputs, 1, progress), CorruptError);
  const PieceTask unknown{.kind = PieceKind::questions, .question = std::string("\x63\0", 2)};
  EXPECT_ERROR(answer_question(unknown.encode(), inputs, 1, progress), CorruptError,
               "an unknown question");
}

TEST_F(QuestionsTest, PartsAreHandedOnWhole) {
  Difference difference{.count = 3,
                        .differing = 2,
                        .outside = 1,
                        .max_absolute = std::numeric_limits<uint64_t>::max(),
                        .max_relative = std::numeric_limits<double>::infinity(),
                        .max_ulps = 7,
                        .index = 0,
                        .a = std::numeric_limits<int64_t>::min(),
                        .b = -std::numeric_limits<Exact>::infinity(),
                        .squared_change = 1.5,
                        .squared_a = 2.5,
                        .squared_b = 3.5,
                        .product = -4.5};
  VarintWriter writer;
  DifferenceQuestion::fields_of_part(writer, difference);
  difference.index = -1;
  DifferenceQuestion::fields_of_part(writer, difference);
  const std::string bytes = writer.take();
  VarintReader reader(bytes);
  Difference again;
  DifferenceQuestion::fields_of_part(reader, again);
  EXPECT_EQ(again.max_absolute, difference.max_absolute);
  EXPECT_EQ(again.max_relative, difference.max_relative);
  EXPECT_EQ(again.index, 0);
  EXPECT_EQ(again.a, difference.a);
  EXPECT_EQ(again.b, difference.b);
  EXPECT_EQ(again.squared_change, 1.5);
  EXPECT_EQ(again.squared_a, 2.5);
  EXPECT_EQ(again.squared_b, 3.5);
  EXPECT_EQ(again.product, -4.5);
  DifferenceQuestion::fields_of_part(reader, again);
  EXPECT_EQ(again.index, -1);
  EXPECT_TRUE(reader.at_end());
}

}  // namespace
}  // namespace dsckpt
