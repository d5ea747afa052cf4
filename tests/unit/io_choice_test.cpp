#include "exec/io_choice.h"

#include <gtest/gtest.h>

namespace dsckpt {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kTiB = uint64_t{1} << 40;  // more than any page cache takes at once

TEST(IoChoice, IsDirectWhereThePageCacheCannotTakeTheOutput) {
  EXPECT_FALSE(choose_io(IoMode::automatic, kMiB, false, 0).direct);
  EXPECT_TRUE(choose_io(IoMode::automatic, kTiB, false, 0).direct);
}

TEST(IoChoice, IsDirectWhereSomebodyWaitsForTheDisk) {
  EXPECT_FALSE(choose_io(IoMode::automatic, kMiB, true, 0).direct);
  EXPECT_TRUE(choose_io(IoMode::automatic, 64 * kMiB, true, 0).direct);
  EXPECT_FALSE(choose_io(IoMode::automatic, 64 * kMiB, false, 0).direct);
}

TEST(IoChoice, IsWhatTheUserSays) {
  for (const bool durable : {false, true}) {
    EXPECT_TRUE(choose_io(IoMode::direct, 1, durable, 0).direct);
    EXPECT_FALSE(choose_io(IoMode::buffered, kTiB, durable, 0).direct);
  }
  for (const IoMode mode : {IoMode::buffered, IoMode::direct}) {
    for (const unsigned threads : {1u, 3u, 64u}) {
      EXPECT_EQ(choose_io(mode, kTiB, false, threads).threads, threads);
    }
  }
}

TEST(IoChoice, BoundsTheMemoryOfAllThreads) {
  for (const unsigned threads : {0u, 1u, 2u, 3u, 4u, 7u, 32u}) {
    const IoChoice io = choose_io(IoMode::direct, kTiB, false, threads);
    EXPECT_GE(io.threads, 1u);
    EXPECT_LE(io.unit_bytes * io.threads, 16 * kMiB);
    EXPECT_EQ(io.unit_bytes & (io.unit_bytes - 1), 0u);
  }
  // A direct write must be long, however many there are.
  EXPECT_EQ(choose_io(IoMode::direct, kTiB, false, 4096).unit_bytes, kMiB / 2);
}

}  // namespace
}  // namespace dsckpt
