#include "io/output_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "dsckpt/error.h"
#include "io/page_buffer.h"
#include "support/expect_error.h"
#include "support/plan_tools.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

using test::read_all;
using test::TempFolder;

constexpr uint64_t kPage = OutputFile::kDirectBlock;
using test::kMiB;

TEST(OutputFile, WritesByPositionInAnyOrder) {
  const TempFolder folder;
  OutputFile file(Folder::at(folder.path()), "out");
  file.write_at(4, as_byte_span("4567"));
  file.write_at(0, as_byte_span("0123"));
  file.write_at(2, {});
  file.sync();
  file.close();
  EXPECT_EQ(read_all(folder.path() / "out"), "01234567");
}

TEST(OutputFile, IsWrittenFromManyThreads) {
  const TempFolder folder;
  OutputFile file(Folder::at(folder.path()), "out");
  std::string expected;
  for (char c = 'a'; c < 'i'; ++c) expected += std::string(1000, c);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 1000; i += 10) {
        const size_t at = t * 1000 + i;
        file.write_at(at, as_byte_span(std::string_view(expected).substr(at, 10)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  file.close();
  EXPECT_EQ(read_all(folder.path() / "out"), expected);
}

TEST(OutputFile, NeverTouchesAFileThatExists) {
  const TempFolder folder;
  folder.write("out", "precious");
  EXPECT_ERROR(OutputFile(Folder::at(folder.path()), "out", "shown"), IoError,
               "shown: cannot create: File exists");
  EXPECT_EQ(read_all(folder.path() / "out"), "precious");
  std::filesystem::create_symlink("nowhere", folder.path() / "link");
  EXPECT_ERROR(OutputFile(Folder::at(folder.path()), "link"), IoError, "File exists");
  EXPECT_ERROR(OutputFile(Folder::at(folder.path()), "no/out"), IoError, "No such file");
}

TEST(OutputFile, ReportsAWriteThatFailsMidwayWithItsPlaceAndErrno) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const TempFolder own;
        ::signal(SIGXFSZ, SIG_IGN);
        rlimit limit{};
        limit.rlim_cur = limit.rlim_max = 6;
        ::setrlimit(RLIMIT_FSIZE, &limit);
        bool good = false;
        try {
          OutputFile(Folder::at(own.path()), "out", "out").write_at(2, as_byte_span("123456789"));
        } catch (const IoError& error) {
          good = error.errno_value() == EFBIG && error.where().offset == 6 &&
                 error.where().file == "out";
        }
        std::filesystem::remove_all(own.path());
        std::exit(good ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(OutputFile, LeavesNoFileIfThereIsNoRoomForIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const TempFolder own;
        ::signal(SIGXFSZ, SIG_IGN);
        rlimit limit{};
        limit.rlim_cur = limit.rlim_max = 4096;
        ::setrlimit(RLIMIT_FSIZE, &limit);
        int told = 0;
        for (int attempt = 0; attempt < 2; ++attempt) {
          try {
            OutputFile(Folder::at(own.path()), "out", "out", {.size = 4097});
          } catch (const IoError& error) {
            told += error.errno_value() == EFBIG && !std::filesystem::exists(own.path() / "out");
          }
        }
        std::filesystem::remove_all(own.path());
        std::exit(told == 2 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

// For each page of a file: true if it is in the page cache.
std::vector<bool> resident_pages(const std::filesystem::path& path) {
  const size_t size = std::filesystem::file_size(path);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  void* const mapped = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  ::close(fd);
  std::vector<unsigned char> pages((size + kPage - 1) / kPage);
  EXPECT_EQ(::mincore(mapped, size, pages.data()), 0);
  ::munmap(mapped, size);
  std::vector<bool> resident;
  for (const unsigned char page : pages) resident.push_back((page & 1) != 0);
  return resident;
}

bool has_direct_writes(const std::filesystem::path& folder) {
  const int fd =
      ::open((folder / "probe").c_str(), O_WRONLY | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
  if (fd >= 0) ::close(fd);
  struct statfs s {};
  // tmpfs takes them and has nothing but the page cache.
  return fd >= 0 && ::statfs(folder.c_str(), &s) == 0 && s.f_type != TMPFS_MAGIC;
}

class DirectOutput : public testing::Test {
 protected:
  // `bytes`[begin, end), in memory that lies as the offset does.
  std::span<const std::byte> part(size_t begin, size_t end) {
    const auto to = buffer_.bytes().subspan(begin % kPage, end - begin);
    std::memcpy(to.data(), bytes_.data() + begin, to.size());
    return to;
  }
  void write(OutputFile& file, size_t begin, size_t end) { file.write_at(begin, part(begin, end)); }

  TempFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "out";
  const std::string bytes_ = test::random_bytes(3 * kMiB + 777, 1);
  PageBuffer buffer_{4 * kMiB};
};

TEST_F(DirectOutput, HoldsWhatWasWrittenWhereverPiecesBeginAndEnd) {
  for (const size_t cut : {size_t{1}, kPage - 1, kPage, kPage + 1, 37 * kPage, kMiB + 5}) {
    for (const bool reserved : {false, true}) {
      std::filesystem::remove(path_);
      OutputFile file(Folder::at(folder_.path()), "out", "",
                      {.size = reserved ? bytes_.size() : 0, .direct = true});
      write(file, 2 * cut, bytes_.size());
      write(file, 0, cut);
      write(file, cut, 2 * cut);
      file.sync();
      file.close();
      EXPECT_TRUE(read_all(path_) == bytes_) << cut;
    }
  }
}

TEST_F(DirectOutput, TakesMemoryThatLiesOtherwise) {
  OutputFile file(Folder::at(folder_.path()), "out", "", {.size = bytes_.size(), .direct = true});
  file.write_at(0, as_byte_span(bytes_).first(kMiB + 1));
  file.write_at(kMiB + 1, as_byte_span(bytes_).subspan(kMiB + 1));
  file.close();
  EXPECT_TRUE(read_all(path_) == bytes_);
}

TEST_F(DirectOutput, GoesPastThePageCacheButForWhatIsNoWholeBlock) {
  if (!has_direct_writes(folder_.path())) GTEST_SKIP() << "no direct writes here";
  OutputFile file(Folder::at(folder_.path()), "out", "", {.size = bytes_.size(), .direct = true});
  write(file, 0, kMiB);
  write(file, kMiB, bytes_.size());
  const std::vector<bool> resident = resident_pages(path_);
  EXPECT_TRUE(resident.back());
  EXPECT_EQ(std::count(resident.begin(), resident.end(), true), 1);
  file.close();
  EXPECT_TRUE(read_all(path_) == bytes_);
}

TEST_F(DirectOutput, KeepsBlocksThatAreWrittenInPiecesInThePageCache) {
  // The first and the last byte of blocks, neighbours, and places too close for direct writes.
  const std::vector<uint64_t> places{0,          4095,        kMiB - 1,       kMiB + 3,
                                     kMiB + 200, kMiB + 9000, 2 * kMiB + 4096};
  OutputFile file(Folder::at(folder_.path()), "out", "", {.size = bytes_.size(), .direct = true});
  uint64_t written = 0;
  for (const uint64_t place : places) {
    if (place > written) write(file, written, place);
    written = place + 3;
  }
  write(file, written, bytes_.size());
  if (has_direct_writes(folder_.path())) {
    const std::vector<bool> resident = resident_pages(path_);
    for (const uint64_t place : places) EXPECT_TRUE(resident[place / kPage]) << place;
    EXPECT_FALSE(resident[kMiB / 2 / kPage]);
    EXPECT_FALSE(resident[3 * kMiB / 2 / kPage]);
    EXPECT_FALSE(resident[5 * kMiB / 2 / kPage]);
  }
  for (const uint64_t place : places) write(file, place, place + 3);
  file.close();
  EXPECT_TRUE(read_all(path_) == bytes_);
}

TEST_F(DirectOutput, ReportsAWriteThatFailsWithItsPlaceAndErrno) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::signal(SIGXFSZ, SIG_IGN);
        rlimit limit{};
        limit.rlim_cur = limit.rlim_max = kMiB;
        ::setrlimit(RLIMIT_FSIZE, &limit);
        bool good = false;
        try {
          OutputFile file(Folder::at(folder_.path()), "out", "out", {.direct = true});
          write(file, 0, 2 * kMiB);
        } catch (const IoError& error) {
          good = error.errno_value() == EFBIG && error.where().offset == kMiB &&
                 error.where().file == "out";
        }
        std::filesystem::remove_all(folder_.path());
        std::exit(good ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(PageBuffer, BeginsAtAPageAndIsZero) {
  for (const uint64_t size :
       {uint64_t{1}, uint64_t{4096}, 2 * kMiB - 1, 2 * kMiB, 4 * kMiB + 8192}) {
    const PageBuffer buffer(size);
    ASSERT_EQ(buffer.bytes().size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.bytes().data()) % kPage, 0u);
    EXPECT_EQ(std::count(buffer.bytes().begin(), buffer.bytes().end(), std::byte{0}),
              static_cast<std::ptrdiff_t>(size));
    buffer.bytes().back() = std::byte{1};
  }
}

TEST(OutputFile, MayBeClosedTwice) {
  const TempFolder folder;
  OutputFile file(Folder::at(folder.path()), "out");
  file.close();
  EXPECT_NO_THROW(file.close());
  EXPECT_ERROR(file.write_at(0, as_byte_span("x")), IoError, "Bad file descriptor");
}

TEST(FileSystem, SyncsFoldersAndKnowsTheFreeSpace) {
  const TempFolder folder;
  EXPECT_NO_THROW(Folder::at(folder.path()).sync());
  EXPECT_NO_THROW(FileSystem(Folder::at(folder.path())).sync());
  EXPECT_ERROR(Folder::at(folder.path() / "missing"), IoError, "cannot open");
  EXPECT_GT(free_space(folder.path()), 0u);
  EXPECT_ERROR(free_space(folder.path() / "missing"), IoError, "free space");
}

}  // namespace
}  // namespace dsckpt
