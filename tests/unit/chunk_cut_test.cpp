#include "dcp/chunk_cut.h"

#include <gtest/gtest.h>

#include <array>

namespace dsckpt {
namespace {

TEST(ChunkCut, IsTorchChunks) {
  // torch.chunk(torch.arange(10), 4): 3, 3, 3, 1; of 5 in 4: 2, 2, 1.
  EXPECT_EQ(rows_of_chunk({10, 1000}, 4, 512), 3);
  EXPECT_EQ(rows_of_chunk({5, 1000}, 4, 512), 2);
  EXPECT_EQ(rows_of_chunk({10, 1000}, 1, 512), 10);
  EXPECT_EQ(rows_of_chunk({3, 1000}, 8, 512), 1);
}

TEST(ChunkCut, JoinsNeighboursThatAreSmall) {
  EXPECT_EQ(rows_of_chunk({100, 100}, 50, 512), 6);  // shards of 2 rows, 200 bytes: three of them
  EXPECT_EQ(rows_of_chunk({100, 100}, 50, 200), 2);
  EXPECT_EQ(rows_of_chunk({100, 1}, 50, 512), 100);
  EXPECT_EQ(rows_of_chunk({100, 100}, 50, 10'000), 100);
}

TEST(ChunkCut, OfTensorsWithoutElementsEndsToo) {
  EXPECT_EQ(rows_of_chunk({0, 4}, 4, 512), 0);
  EXPECT_EQ(rows_of_chunk({6, 0}, 4, 512), 2);
}

TEST(ChunkCut, HasAsManyAsItMay) {
  // Two tensors on 8 ranks, with shards of 2000 and 8000 bytes.
  const std::array<CutTensor, 2> tensors{{{16, 1000}, {16, 4000}}};
  EXPECT_EQ(least_chunk_bytes(tensors, 8, 16), kLeastChunkBytes);
  EXPECT_EQ(least_chunk_bytes(tensors, 8, 15), 2001U);  // 4 and 8
  EXPECT_EQ(least_chunk_bytes(tensors, 8, 12), 2001U);
  EXPECT_EQ(least_chunk_bytes(tensors, 8, 11), 4001U);   // 3 and 8
  EXPECT_EQ(least_chunk_bytes(tensors, 8, 2), 56'001U);  // seven shards of 8000 are not all
}

TEST(ChunkCut, IsWholeTensorsWhereThatIsStillTooMany) {
  const std::array<CutTensor, 2> tensors{{{16, 1000}, {16, 4000}}};
  EXPECT_EQ(least_chunk_bytes(tensors, 8, 0), 64'000U);
  EXPECT_EQ(least_chunk_bytes({}, 8, 0), kLeastChunkBytes);
}

}  // namespace
}  // namespace dsckpt
