#include "io/input_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "dsckpt/error.h"
#include "support/expect_error.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;

std::string text_at(const InputFile& file, uint64_t offset, uint64_t size) {
  return std::string(as_text(file.read(offset, size)));
}

TEST(InputFile, ReadsByPosition) {
  const TempFolder folder;
  const InputFile file(folder.write("a", "0123456789"), "shown");
  EXPECT_EQ(file.size(), 10u);
  EXPECT_EQ(file.display(), "shown");
  EXPECT_EQ(file.path(), folder.path() / "a");
  EXPECT_EQ(text_at(file, 3, 4), "3456");
  EXPECT_EQ(text_at(file, 10, 0), "");
}

TEST(InputFile, RefusesARangeBeyondItsEndBeforeAllocating) {
  const TempFolder folder;
  const InputFile file(folder.write("a", "0123456789"));
  EXPECT_ERROR(file.read(8, 3), CorruptError, "at 8: 3 bytes expected, 2 left");
  EXPECT_ERROR(file.read(11, 0), CorruptError, "0 left");
  EXPECT_ERROR(file.read(1, ~uint64_t{0}), CorruptError, "9 left");
  EXPECT_ERROR(file.read(~uint64_t{0}, 2), CorruptError, "0 left");
}

TEST(InputFile, RefusesWhatIsNotARegularFile) {
  const TempFolder folder;
  EXPECT_ERROR(InputFile(folder.path() / "missing"), IoError, "cannot open: No such file");
  EXPECT_ERROR(InputFile(folder.path()), IoError, "is not a regular file");
  ASSERT_EQ(::mkfifo((folder.path() / "fifo").c_str(), 0600), 0);
  EXPECT_ERROR(InputFile(folder.path() / "fifo"), IoError, "is not a regular file");
}

TEST(InputFile, ReportsAFileThatShrank) {
  const TempFolder folder;
  const InputFile file(folder.write("a", "0123456789"), "a");
  fs::resize_file(folder.path() / "a", 6);
  std::vector<std::byte> out(8);
  EXPECT_ERROR(file.read_at(2, out), IoError, "a: at 6: file ends 4 bytes early");
}

class ManyFiles : public testing::Test {
 protected:
  // More than descriptors may be open, so that the first files are closed again.
  static void push_out_the_first() {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 64;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }

  static void add_files(const TempFolder& folder, InputFiles& files, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      files.add(folder.write(std::to_string(i), std::to_string(i) + " is here"));
    }
  }

  // Runs `body` in a process of its own: the library asks for the limit once.
  template <typename Body>
  static void expect_in_child(Body&& body) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(
        {
          bool good = false;
          try {
            push_out_the_first();
            good = body();
          } catch (const std::exception& error) {
            std::cerr << error.what();
          }
          std::exit(good ? 0 : 1);
        },
        testing::ExitedWithCode(0), "");
  }
};

TEST_F(ManyFiles, AreReadUnderALowLimitOfDescriptorsFromManyThreads) {
  expect_in_child([] {
    const TempFolder folder;
    InputFiles files;
    add_files(folder, files, 300);
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (size_t i = 0; i < 600; ++i) {
          const auto id = static_cast<FileId>((i * (2 * t + 1) + t) % 300);
          try {
            if (text_at(files[id], 0, files[id].size()) != std::to_string(id) + " is here") ++wrong;
          } catch (const Error&) {
            ++wrong;
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return wrong == 0;
  });
}

TEST_F(ManyFiles, NoticeThatAClosedFileWasReplaced) {
  expect_in_child([] {
    const TempFolder folder;
    InputFiles files;
    add_files(folder, files, 100);
    folder.write("other", "X is here");
    fs::rename(folder.path() / "other", folder.path() / "0");
    try {
      files[0].read(0, 6);
    } catch (const IoError& error) {
      return std::string(error.what()).find("changed while it was being read") != std::string::npos;
    }
    return false;
  });
}

TEST_F(ManyFiles, NoticeThatAClosedFileGrewOrVanished) {
  expect_in_child([] {
    const TempFolder folder;
    InputFiles files;
    add_files(folder, files, 100);
    fs::resize_file(folder.path() / "0", 60);
    fs::remove(folder.path() / "1");
    int refused = 0;
    for (const FileId id : {0u, 1u}) {
      try {
        files[id].read(0, 6);
      } catch (const IoError&) {
        ++refused;
      }
    }
    return refused == 2 && text_at(files[2], 0, 9) == "2 is here";
  });
}

TEST(InputFiles, GiveTheSamePathTheSameId) {
  const TempFolder folder;
  const fs::path a = folder.write("a", "1");
  const fs::path b = folder.write("b", "22");
  InputFiles files;
  EXPECT_EQ(files.add(a), 0u);
  EXPECT_EQ(files.add(b), 1u);
  EXPECT_EQ(files.add(a), 0u);
  EXPECT_EQ(files.size(), 2u);
  EXPECT_EQ(files[1].size(), 2u);
}

TEST(InputFiles, StayUsableAfterAFileThatCannotBeOpened) {
  const TempFolder folder;
  InputFiles files;
  EXPECT_ERROR(files.add(folder.path() / "late"), IoError, "cannot open");
  EXPECT_EQ(files.size(), 0u);
  EXPECT_EQ(files.add(folder.write("late", "now")), 0u);
  EXPECT_EQ(text_at(files[0], 0, 3), "now");
}

TEST(InputFiles, NameFilesRelativeToTheRootThatHoldsThem) {
  const TempFolder folder;
  fs::create_directories(folder.path() / "in/tag");
  fs::create_directories(folder.path() / "in2");
  InputFiles files;
  const FileId inside = files.add(folder.write("in/tag/x.pt", ""), folder.path() / "in");
  const FileId outside = files.add(folder.write("in2/y.pt", ""), folder.path() / "in");
  EXPECT_EQ(files[inside].display(), "tag/x.pt");
  EXPECT_EQ(files[outside].display(), (folder.path() / "in2/y.pt").string());
}

}  // namespace
}  // namespace dsckpt
