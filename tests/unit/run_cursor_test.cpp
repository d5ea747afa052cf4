#include "plan/run_cursor.h"

#include <gtest/gtest.h>

namespace dsckpt {
namespace {

// Three rows of four float32, 100 bytes apart, then one row of six.
RunCursor over_rows() {
  return RunCursor({{.source = {.file = 1, .offset = 1000, .row_bytes = 16, .stride = 100},
                     .rows = 3,
                     .stored = DType::float32,
                     .result = DType::float32},
                    {.source = {.file = 2, .offset = 40, .row_bytes = 24},
                     .stored = DType::float32,
                     .result = DType::float32}});
}

TEST(RunCursor, GoesFromRowToRow) {
  RunCursor cursor = over_rows();
  EXPECT_EQ(cursor.left_in_row(), 4u);
  EXPECT_EQ(cursor.piece(3), (Rows{1, 1000, 12}));
  cursor.advance(3);
  EXPECT_EQ(cursor.left_in_row(), 1u);
  EXPECT_EQ(cursor.piece(1), (Rows{1, 1012, 4}));
  cursor.advance(6);
  EXPECT_EQ(cursor.piece(2), (Rows{1, 1204, 8}));
  cursor.advance(3);
  EXPECT_EQ(cursor.left_in_row(), 6u);
  EXPECT_EQ(cursor.piece(6), (Rows{2, 40, 24}));
  EXPECT_FALSE(cursor.done());
  cursor.advance(6);
  EXPECT_TRUE(cursor.done());
}

TEST(RunCursor, FindsBlocksThatAreRows) {
  RunCursor cursor = over_rows();
  EXPECT_EQ(cursor.even_blocks(4), 3u);
  EXPECT_EQ(cursor.blocks(4), (Rows{1, 1000, 16, 100}));
  cursor.advance(4);
  EXPECT_EQ(cursor.even_blocks(4), 2u);
  EXPECT_EQ(cursor.blocks(4), (Rows{1, 1100, 16, 100}));
  cursor.advance(1);
  EXPECT_EQ(cursor.even_blocks(4), 0u);
}

TEST(RunCursor, FindsBlocksThatArePartsOfARow) {
  RunCursor cursor = over_rows();
  EXPECT_EQ(cursor.even_blocks(2), 2u);
  cursor.advance(12 + 1);
  EXPECT_EQ(cursor.even_blocks(2), 2u);
  EXPECT_EQ(cursor.blocks(2), (Rows{2, 44, 8, 8}));
  EXPECT_EQ(cursor.even_blocks(6), 0u);
}

// Rows of two columns: three bytes of one file, two of another.
TEST(RunCursor, GoesFromColumnToColumn) {
  RunCursor cursor({{.source = {.row_bytes = 5},
                     .rows = 2,
                     .combine = Combine::interleave,
                     .operands = {{0, 10, 3, 3}, {1, 20, 2, 50}}}});
  EXPECT_EQ(cursor.even_blocks(5), 0u);
  EXPECT_EQ(cursor.left_in_row(), 3u);
  cursor.advance(3);
  EXPECT_EQ(cursor.left_in_row(), 2u);
  EXPECT_EQ(cursor.piece(2), (Rows{1, 20, 2}));
  cursor.advance(3);
  EXPECT_EQ(cursor.left_in_row(), 2u);
  EXPECT_EQ(cursor.piece(2), (Rows{0, 14, 2}));
  cursor.advance(3);
  EXPECT_EQ(cursor.piece(1), (Rows{1, 71, 1}));
}

TEST(RunCursor, PassesZeros) {
  RunCursor cursor({{.source = {.row_bytes = 4}, .combine = Combine::zeros},
                    {.source = {.file = 3, .offset = 7, .row_bytes = 2}}});
  EXPECT_EQ(cursor.even_blocks(2), 0u);
  cursor.advance(5);
  EXPECT_EQ(cursor.piece(1), (Rows{3, 8, 1}));
}

}  // namespace
}  // namespace dsckpt
