// The books of padding against stage_1_and_2.py (groups_padding, _get_groups_without_padding) and
// bf16_optimizer.py (group_paddings). They were worked out by hand.
#include "checkpoint/padding_books.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace dsckpt {
namespace {

using Counts = std::vector<uint64_t>;

Counts paddings(const PaddingBooks& books, const FlatCut& cut) {
  Counts counts;
  for (size_t rank = 0; rank < cut.ranks; ++rank) counts.push_back(books.padding(cut, rank));
  return counts;
}

Counts saved(const PaddingBooks& books, const FlatCut& cut) {
  Counts counts;
  for (size_t rank = 0; rank < cut.ranks; ++rank) counts.push_back(books.saved(cut, rank));
  return counts;
}

// 21 elements on 4 ranks: padded to a multiple of 8, partitions of 6. Three are padding.
constexpr FlatCut kShortPadding{.ranks = 4, .length = 6, .used = 21};
// 9 elements on 4 ranks: padded to 16, partitions of 4. Rank 2 has one element, rank 3 none.
constexpr FlatCut kLongPadding{.ranks = 4, .length = 4, .used = 9};
// 1 element on 4 ranks: padded to 8, partitions of 2. Seven are padding.
constexpr FlatCut kNothingButPadding{.ranks = 4, .length = 2, .used = 1};

TEST(PaddingBooks, OfARankAreItsOwnSince0164) {
  const PaddingBooks& books = padding_books(kLongPadding, {.last_padding = 4});
  EXPECT_EQ(books.writer, "stage_1_and_2.py since 0.16.4");
  EXPECT_EQ(paddings(books, kLongPadding), (Counts{0, 0, 3, 4}));
  EXPECT_EQ(saved(books, kLongPadding), (Counts{4, 4, 1, 0}));
  EXPECT_EQ(paddings(books, kNothingButPadding), (Counts{1, 2, 2, 2}));
  EXPECT_EQ(saved(books, kNothingButPadding), (Counts{1, 0, 0, 0}));
}

// t[:4 - 7] of the four elements of the last rank is t[:-3], so one is left of them.
TEST(PaddingBooks, WereOnTheLastRankBefore0164WhichPythonCutFromTheBack) {
  const PaddingBooks& books = padding_books(kLongPadding, {.last_padding = 7});
  EXPECT_EQ(books.writer, "stage_1_and_2.py before 0.16.4");
  EXPECT_EQ(paddings(books, kLongPadding), (Counts{0, 0, 0, 7}));
  EXPECT_EQ(saved(books, kLongPadding), (Counts{4, 4, 4, 1}));
  // t[:2 - 7] of two is empty.
  EXPECT_EQ(paddings(books, kNothingButPadding), (Counts{0, 0, 0, 7}));
  EXPECT_EQ(saved(books, kNothingButPadding), (Counts{2, 2, 2, 0}));
}

TEST(PaddingBooks, OfBf16OptimizerAreOnTheLastRankAndNothingIsCutOff) {
  for (const std::optional<uint64_t> said :
       {std::optional<uint64_t>(7), std::optional<uint64_t>()}) {
    const PaddingBooks& books =
        padding_books(kLongPadding, {.keeps_padding = true, .last_padding = said});
    EXPECT_EQ(books.writer, "bf16_optimizer.py");
    EXPECT_EQ(paddings(books, kLongPadding), (Counts{0, 0, 0, 7}));
    EXPECT_EQ(saved(books, kLongPadding), (Counts{4, 4, 4, 4}));
  }
}

// Then only the last rank has any, and both releases of stages 1 and 2 wrote the same.
TEST(PaddingBooks, AgreeOnAPaddingThatIsNoLongerThanAPartition) {
  const PaddingBooks& since = padding_books(kLongPadding, {.last_padding = 4});
  const PaddingBooks& before = padding_books(kLongPadding, {.last_padding = 7});
  for (const PaddingBooks* books : {&since, &before}) {
    EXPECT_EQ(paddings(*books, kShortPadding), (Counts{0, 0, 0, 3}));
    EXPECT_EQ(saved(*books, kShortPadding), (Counts{6, 6, 6, 3}));
  }
  EXPECT_EQ(&padding_books(kShortPadding, {.last_padding = 3}), &since);
}

TEST(PaddingBooks, AreThoseOfTodayWhereTheFilesDoNotSay) {
  EXPECT_EQ(&padding_books(kLongPadding, {}), &padding_books(kLongPadding, {.last_padding = 4}));
}

// get_alignment_padding(group, ranks) of a vector that is padded to 2 * ranks. 21 elements on 4
// ranks want 3, as today. 17 on 4 want 3 of 7, so that the last rank keeps 4 of padding.
TEST(PaddingBooks, CountedToTheRanksAloneBefore07) {
  const FlatCut cut{.ranks = 4, .length = 6, .used = 17};
  const PaddingBooks& books = padding_books(cut, {.last_saved = 3});
  EXPECT_EQ(books.writer, "stage_1_and_2.py before 0.7");
  EXPECT_EQ(paddings(books, cut), (Counts{0, 0, 0, 3}));
  EXPECT_EQ(saved(books, cut), (Counts{6, 6, 6, 3}));
  EXPECT_EQ(saved(padding_books(kShortPadding, {.last_saved = 3}), kShortPadding),
            (Counts{6, 6, 6, 3}));
  // 9 on 4 are padded to 16: t[:4 - 3] of the last.
  EXPECT_EQ(saved(padding_books(kLongPadding, {.last_saved = 1}), kLongPadding),
            (Counts{4, 4, 4, 1}));
  // 1 on 4 is padded to 8: t[:2 - 3] of the last.
  EXPECT_EQ(saved(padding_books(kNothingButPadding, {.last_saved = 1}), kNothingButPadding),
            (Counts{2, 2, 2, 1}));
  // Files that have group_paddings are of later releases.
  EXPECT_NE(padding_books(cut, {.last_padding = 7, .last_saved = 3}).writer,
            "stage_1_and_2.py before 0.7");
}

TEST(FlatCut, HasRealElementsUpToThePadding) {
  EXPECT_EQ(kLongPadding.padding(), 7u);
  EXPECT_EQ(kLongPadding.real(0), 4u);
  EXPECT_EQ(kLongPadding.real(2), 1u);
  EXPECT_EQ(kLongPadding.real(3), 0u);
}

}  // namespace
}  // namespace dsckpt
