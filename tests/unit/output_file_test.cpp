#include "io/output_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "support/expect_error.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

using test::read_all;
using test::TempFolder;

TEST(OutputFile, WritesByPositionInAnyOrder) {
  const TempFolder folder;
  OutputFile file(folder.path() / "out");
  file.write_at(4, as_byte_span("4567"));
  file.write_at(0, as_byte_span("0123"));
  file.write_at(2, {});
  file.sync();
  file.close();
  EXPECT_EQ(read_all(folder.path() / "out"), "01234567");
}

TEST(OutputFile, IsWrittenFromManyThreads) {
  const TempFolder folder;
  OutputFile file(folder.path() / "out");
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
  EXPECT_ERROR(OutputFile(folder.path() / "out", "shown"), IoError,
               "shown: cannot create: File exists");
  EXPECT_EQ(read_all(folder.path() / "out"), "precious");
  std::filesystem::create_symlink("nowhere", folder.path() / "link");
  EXPECT_ERROR(OutputFile(folder.path() / "link"), IoError, "File exists");
  EXPECT_ERROR(OutputFile(folder.path() / "no/out"), IoError, "No such file");
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
          OutputFile(own.path() / "out", "out").write_at(2, as_byte_span("123456789"));
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
            OutputFile(own.path() / "out", "out", 4097);
          } catch (const IoError& error) {
            told += error.errno_value() == EFBIG && !std::filesystem::exists(own.path() / "out");
          }
        }
        std::filesystem::remove_all(own.path());
        std::exit(told == 2 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(OutputFile, MayBeClosedTwice) {
  const TempFolder folder;
  OutputFile file(folder.path() / "out");
  file.close();
  EXPECT_NO_THROW(file.close());
  EXPECT_ERROR(file.write_at(0, as_byte_span("x")), IoError, "Bad file descriptor");
}

TEST(FileSystem, SyncsFoldersAndKnowsTheFreeSpace) {
  const TempFolder folder;
  EXPECT_NO_THROW(sync_directory(folder.path()));
  EXPECT_ERROR(sync_directory(folder.path() / "missing"), IoError, "cannot open");
  EXPECT_GT(free_space(folder.path()), 0u);
  EXPECT_ERROR(free_space(folder.path() / "missing"), IoError, "free space");
}

}  // namespace
}  // namespace dsckpt
