#include "exec/io_choice.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "exec/item_reader.h"
#include "exec/workers.h"
#include "support/plan_tools.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

using test::kMiB;
constexpr uint64_t kTiB = uint64_t{1} << 40;  // more than any page cache takes at once

void drop_from_cache(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ::fdatasync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

class IoChoiceTest : public testing::Test {
 protected:
  IoChoice choose(IoMode mode, uint64_t bytes, bool durable, unsigned threads,
                  bool packs = false) const {
    PlanBuilder builder;
    builder.add_output("out", bytes);
    return choose_io(mode, builder.finish(), inputs_, systems_, durable, packs, threads);
  }

  test::TempFolder folder_;
  InputFiles inputs_;
  FileSystems systems_ = {};
};

TEST_F(IoChoiceTest, IsDirectWhereThePageCacheCannotTakeTheOutput) {
  EXPECT_FALSE(choose(IoMode::automatic, kMiB, false, 0).direct);
  EXPECT_TRUE(choose(IoMode::automatic, kTiB, false, 0).direct);
}

TEST_F(IoChoiceTest, IsDirectWhereSomebodyWaitsForTheDisk) {
  EXPECT_FALSE(choose(IoMode::automatic, kMiB, true, 0).direct);
  EXPECT_TRUE(choose(IoMode::automatic, 64 * kMiB, true, 0).direct);
  EXPECT_FALSE(choose(IoMode::automatic, 64 * kMiB, false, 0).direct);
}

TEST_F(IoChoiceTest, IsWhatTheUserSays) {
  for (const bool durable : {false, true}) {
    EXPECT_TRUE(choose(IoMode::direct, 1, durable, 0).direct);
    EXPECT_FALSE(choose(IoMode::buffered, kTiB, durable, 0).direct);
  }
  for (const IoMode mode : {IoMode::buffered, IoMode::direct}) {
    for (const unsigned threads : {1u, 3u, 64u}) {
      EXPECT_EQ(choose(mode, kTiB, false, threads).threads, threads);
    }
  }
}

TEST_F(IoChoiceTest, NeverWritesPackedFilesDirectly) {
  const IoChoice io = choose(IoMode::direct, kTiB, true, 0, true);
  EXPECT_FALSE(io.direct);
  EXPECT_GE(io.unit_bytes, 2 * kMiB);
}

TEST_F(IoChoiceTest, BoundsTheMemoryOfAllThreads) {
  for (const unsigned threads : {0u, 1u, 2u, 3u, 4u, 7u, 32u}) {
    const IoChoice io = choose(IoMode::direct, kTiB, false, threads);
    EXPECT_GE(io.threads, 1u);
    if (threads != 0) {
      EXPECT_LE(io.unit_bytes * io.threads, 16 * kMiB);
    }
    EXPECT_EQ(io.unit_bytes & (io.unit_bytes - 1), 0u);
  }
  // A direct write must be long, however many there are.
  EXPECT_EQ(choose(IoMode::direct, kTiB, false, 4096).unit_bytes, kMiB / 2);
}

TEST_F(IoChoiceTest, ReadsAndWritesMoreAtOnceOverANetwork) {
  using enum FileSystemKind;
  for (const FileSystemKind kind : {lustre, gpfs, nfs, fuse}) {
    for (const IoMode mode : {IoMode::buffered, IoMode::direct}) {
      systems_ = {.output = kind};
      const IoChoice out = choose(mode, kTiB, false, 8);
      EXPECT_EQ(out.direct, mode == IoMode::direct);
      EXPECT_EQ(out.unit_bytes, 8 * kMiB);
      EXPECT_EQ(out.write_bytes, 8 * kMiB);
      EXPECT_EQ(out.cut_bytes, 4 * kMiB);
      EXPECT_EQ(ItemReader::piece_bytes(out.unit_bytes), 4 * kMiB);

      // Outputs beside the processor are cut as ever.
      systems_ = {.input = kind};
      const IoChoice in = choose(mode, kTiB, false, 8);
      EXPECT_EQ(in.unit_bytes, 8 * kMiB);
      EXPECT_EQ(in.write_bytes, kMiB / 16);
      EXPECT_EQ(in.cut_bytes, kMiB);
    }
  }
  systems_ = {};
  EXPECT_EQ(choose(IoMode::buffered, kMiB, false, 8).unit_bytes, kMiB / 4);
  EXPECT_EQ(ItemReader::piece_bytes(kMiB / 4), kMiB / 4);
  EXPECT_EQ(ItemReader::piece_bytes(2 * kMiB), kMiB / 4);
}

TEST_F(IoChoiceTest, BoundsTheMemoryOfAllThreadsOverANetwork) {
  systems_ = {FileSystemKind::lustre, FileSystemKind::lustre};
  for (const unsigned threads : {1u, 8u, 32u, 48u, 64u}) {
    const IoChoice io = choose(IoMode::direct, kTiB, false, threads);
    EXPECT_LE(io.unit_bytes * io.threads, 256 * kMiB);
    EXPECT_EQ(io.unit_bytes & (io.unit_bytes - 1), 0u);
  }
  EXPECT_EQ(choose(IoMode::buffered, kTiB, false, 4096).unit_bytes, 4 * kMiB);
  // Frames are whole still.
  EXPECT_EQ(choose(IoMode::automatic, kTiB, false, 8, true).unit_bytes, 8 * kMiB);
}

TEST(FileSystemTest, IsKnownByItsNumber) {
  EXPECT_EQ(kind_of(0x0BD00BD0), FileSystemKind::lustre);
  EXPECT_EQ(kind_of(0x47504653), FileSystemKind::gpfs);
  EXPECT_EQ(kind_of(0x6969), FileSystemKind::nfs);
  EXPECT_EQ(kind_of(0x65735546), FileSystemKind::fuse);
  EXPECT_EQ(kind_of(0xEF53), FileSystemKind::local);  // ext4
  // A path that does not exist yet is on the device of its nearest folder.
  test::TempFolder folder;
  EXPECT_EQ(existing_part(folder.path() / "no" / "such"), folder.path());
  EXPECT_EQ(file_system_kind(folder.path() / "no" / "such"), file_system_kind(folder.path()));
}

TEST_F(IoChoiceTest, HasMoreThreadsThanCoresOnlyForInputThatIsNotInThePageCache) {
  const auto path = folder_.write("in", test::random_bytes(4 * kMiB, 1));
  const FileId in = inputs_.add(path);
  PlanBuilder builder;
  builder.add_output("out", 4 * kMiB);
  builder.put(0, 0, TensorSource::stored({in, 0, 4 * kMiB}, DType::uint8, {4 * kMiB}));
  const CopyPlan plan = builder.finish();
  const auto threads = [&] {
    return choose_io(IoMode::automatic, plan, inputs_, {}, false, false, 0).threads;
  };
  EXPECT_EQ(threads(), cores());
  drop_from_cache(path);
  const auto probe = folder_.write("probe", test::random_bytes(4 * kMiB, 2));
  drop_from_cache(probe);
  // Some file systems are the page cache. A file is asked once only: that may bring it there.
  if (InputFile(probe).is_cached(2 * kMiB)) GTEST_SKIP() << "the page cache keeps everything here";
  EXPECT_EQ(threads(), std::max(cores(), 8u));
}

}  // namespace
}  // namespace dsckpt
