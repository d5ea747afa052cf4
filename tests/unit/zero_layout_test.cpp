#include "deepspeed/zero_layout.h"

#include <gtest/gtest.h>

#include <limits>

#include "dsckpt/error.h"

namespace dsckpt {
namespace {

using Counts = std::vector<uint64_t>;
using Ends = std::vector<size_t>;

// Expected values are worked out by hand from the rules of stage_1_and_2.py and stage3.py.

TEST(RoundRobinOrder, TakesEveryNthParameterInTurn) {
  EXPECT_EQ(round_robin_order(7, 3), (Ends{0, 3, 6, 1, 4, 2, 5}));
  EXPECT_EQ(round_robin_order(3, 1), (Ends{0, 1, 2}));
  EXPECT_EQ(round_robin_order(2, 5), (Ends{0, 1}));
  EXPECT_EQ(round_robin_order(0, 2), Ends{});
}

TEST(FlatLayout, PadsTheVectorToTwoElementsARank) {
  const FlatLayout layout = flat_layout(Counts{5, 0, 3}, 3);
  EXPECT_EQ(layout.begins, (Counts{0, 5, 5}));
  EXPECT_EQ(layout.paddings, (Counts{0, 0, 0}));
  EXPECT_EQ(layout.used, 8);
  EXPECT_EQ(layout.partition, 4);  // 12 elements
  EXPECT_EQ(flat_layout(Counts{12}, 3).partition, 4);
  EXPECT_EQ(flat_layout(Counts{1}, 4).partition, 2);
}

TEST(FlatLayout, AlignsEveryParameterButLeavesTheEndAlone) {
  const FlatLayout layout = flat_layout(Counts{5, 8, 1, 3}, 2, 8);
  EXPECT_EQ(layout.begins, (Counts{0, 8, 16, 24}));
  EXPECT_EQ(layout.paddings, (Counts{3, 0, 7, 0}));
  EXPECT_EQ(layout.used, 27);
  EXPECT_EQ(layout.partition, 14);  // 28 elements
}

TEST(FlatLayout, RefusesSizesThatOverflow) {
  const uint64_t most = std::numeric_limits<uint64_t>::max();
  EXPECT_THROW(flat_layout(Counts{most, 1}, 2), Error);
  EXPECT_THROW(flat_layout(Counts{most}, 2), Error);
}

TEST(SubGroupEnds, CountsWhatARankHasAndClosesAfterTheParameterThatFillsIt) {
  // On 2 ranks: 5, 3, 1, 4 elements each.
  EXPECT_EQ(sub_group_ends(Counts{10, 5, 1, 8}, 2, 8), (Ends{2, 4}));
  EXPECT_EQ(sub_group_ends(Counts{10, 5, 1, 8}, 2, 5), (Ends{1, 4}));
  EXPECT_EQ(sub_group_ends(Counts{10, 5, 1, 8}, 2, 1), (Ends{1, 2, 3, 4}));
  EXPECT_EQ(sub_group_ends(Counts{10, 5, 1, 8}, 2, 1'000'000'000), (Ends{4}));
  // On 4 ranks they are 3, 2, 1, 2: other borders at the same size.
  EXPECT_EQ(sub_group_ends(Counts{10, 5, 1, 8}, 4, 5), (Ends{2, 4}));
  EXPECT_EQ(sub_group_ends(Counts{}, 2, 5), Ends{});
}

TEST(PieceOf, IsRoundedUp) {
  EXPECT_EQ(piece_of(10, 4), 3);
  EXPECT_EQ(piece_of(1, 8), 1);
  EXPECT_EQ(piece_of(0, 8), 0);
}

}  // namespace
}  // namespace dsckpt
