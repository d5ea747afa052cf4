#include "nodes/file_service.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "base/bytes.h"
#include "support/expect_error.h"
#include "support/plan_tools.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

using namespace std::chrono_literals;

class FileServiceTest : public testing::Test {
 protected:
  FileServiceTest() {
    std::filesystem::create_directories(folder_.path() / "tag" / "below");
    folder_.write("latest", "tag");
    folder_.write("tag/large", large_);
    folder_.write("tag/below/small", "x");
  }

  std::unique_ptr<FileClient> client(const Token& token, int rank = 1) const {
    return std::make_unique<FileClient>(
        token, std::vector<FileServerPlace>{{{rank, "n1"}, own_addresses(), server_->port()}}, 10s);
  }

  std::string read(FileClient& client, const std::string& name, uint64_t offset,
                   size_t size) const {
    const std::filesystem::path path = folder_.path() / name;
    const FileLook look = look_at(path);
    std::string bytes(size, '\0');
    client.read(1, path, look.size, look.modified, offset,
                std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }

  test::TempFolder folder_;
  const std::string large_ = test::random_bytes(3 * test::kMiB + 5, 1);
  const Token token_ = new_token();
  std::unique_ptr<FileServer> server_ = std::make_unique<FileServer>(token_, 1);
};

TEST_F(FileServiceTest, ListsAndReadsWhatIsThere) {
  const auto files = client(token_);
  std::vector<std::string> names;
  for (const ListedFile& file : files->list(1, folder_.path())) {
    names.push_back(file.path);
    EXPECT_EQ(file.look, look_at(folder_.path() / file.path));
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"latest", "tag", "tag/below", "tag/below/small",
                                             "tag/large"}));
  EXPECT_EQ(read(*files, "latest", 0, 3), "tag");
  EXPECT_EQ(read(*files, "tag/large", 0, large_.size()), large_);
  EXPECT_EQ(read(*files, "tag/large", 77, 2 * test::kMiB), large_.substr(77, 2 * test::kMiB));
}

TEST_F(FileServiceTest, ManyThreadsReadAtOnce) {
  const auto files = client(token_);
  std::vector<std::future<bool>> done;
  for (uint64_t i = 0; i < 8; ++i) {
    done.push_back(std::async(std::launch::async, [&, i] {
      bool same = true;
      for (uint64_t at = i * 1000; at + 300'000 < large_.size(); at += 300'000) {
        same = same && read(*files, "tag/large", at, 300'000) == large_.substr(at, 300'000);
      }
      return same;
    }));
  }
  for (auto& one : done) EXPECT_TRUE(one.get());
}

TEST_F(FileServiceTest, WhatFailsThereIsSaidWithTheRank) {
  const auto files = client(token_);
  std::byte byte;
  const std::span<std::byte> out(&byte, 1);
  EXPECT_ERROR(files->read(1, folder_.path() / "none", 1, 1, 0, out), IoError,
               "rank 1 on n1: cannot open");
  EXPECT_ERROR(files->list(1, folder_.path() / "none"), IoError, "rank 1 on n1: cannot list");
  const FileLook look = look_at(folder_.path() / "latest");
  EXPECT_ERROR(files->read(1, folder_.path() / "latest", look.size, look.modified, 3, out), IoError,
               "ends early");
  EXPECT_ERROR(files->read(1, folder_.path() / "latest", 4, look.modified, 0, out), IoError,
               "changed while it was being read");
  EXPECT_ERROR(files->read(1, folder_.path() / "latest", 3, look.modified + 1, 0, out), IoError,
               "changed while it was being read");
  EXPECT_ERROR(files->read(1, folder_.path(), 0, 0, 0, out), IoError, "rank 1 on n1: ");
  EXPECT_ERROR(files->read(5, folder_.path() / "latest", 3, 0, 0, out), IoError, "rank 5");
}

TEST_F(FileServiceTest, OnlyWhoHasTheTokenIsServed) {
  EXPECT_ERROR(client(new_token())->list(1, folder_.path()), IoError, "does not answer");
  // Another rank has the port that was meant to be rank 3's.
  const auto wrong = client(token_, 3);
  EXPECT_ERROR(wrong->list(3, folder_.path()), IoError, "does not answer");
}

TEST_F(FileServiceTest, AServerThatIsGoneIsNamed) {
  const auto files = client(token_);
  EXPECT_EQ(read(*files, "latest", 0, 3), "tag");
  server_ = nullptr;
  std::byte byte;
  const FileLook look = look_at(folder_.path() / "latest");
  EXPECT_ERROR(
      files->read(1, folder_.path() / "latest", look.size, look.modified, 0, std::span(&byte, 1)),
      IoError, "rank 1 on n1 no longer serves its files");
}

TEST_F(FileServiceTest, WhoeverReadsCanBeStopped) {
  const auto files = client(token_);
  files->stop(true);
  EXPECT_THROW(read(*files, "latest", 0, 3), InterruptedError);
  files->stop(false);
  EXPECT_EQ(read(*files, "latest", 0, 3), "tag");
}

}  // namespace
}  // namespace dsckpt
