// Source::gather and Source::check: tensors into the caller's memory.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "dsckpt/checkpoint.h"
#include "dsckpt/error.h"
#include "support/expect_error.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {
namespace fs = std::filesystem;

class Gather : public testing::Test {
 protected:
  Gather() {
    fs::copy(fs::path(DSCKPT_TESTDATA) / "checkpoints/z2_bf16_w2/ckpt", folder_.path(),
             fs::copy_options::recursive);
    source_.emplace(Source::open(folder_.path(), {.optimizer_states = true}));
    tensors_ = source_->tensors();
  }

  std::vector<std::byte> read(const SourceTensor& tensor) const {
    std::vector<std::byte> bytes(tensor.bytes());
    source_->read(tensor, bytes);
    return bytes;
  }

  // Elements [first, first + count) of one, into a buffer that has `more` bytes more than they.
  std::vector<std::byte> gather(const SourceTensor& tensor, int64_t first, int64_t count,
                                bool check = true, size_t more = 0) {
    std::vector<std::byte> bytes(static_cast<size_t>(count) * size_of(tensor.dtype) + more);
    const TensorRead read{&tensor, first, count, bytes};
    source_->gather({&read, 1}, check, progress_);
    return bytes;
  }

  // The file of the masters of rank 1.
  fs::path optim() const {
    return folder_.path() / "global_step3/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt";
  }

  // Changes the first element of a tensor that lies there alone, and opens the checkpoint again.
  SourceTensor damage() {
    for (const SourceTensor& tensor : tensors_) {
      const std::optional<TensorView> view = source_->view(tensor);
      const std::vector<std::string> files = source_->files(tensor);
      if (!view || files.size() != 1 || !optim().string().ends_with(files.front())) continue;
      const std::vector<std::byte> bytes = read(tensor);
      std::fstream file(optim(), std::ios::in | std::ios::out | std::ios::binary);
      std::string content(std::istreambuf_iterator<char>(file), {});
      const size_t at =
          content.find(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
      file.seekp(static_cast<std::streamoff>(at)).put(static_cast<char>(content[at] ^ 1));
      file.close();
      source_.emplace(Source::open(folder_.path(), {.optimizer_states = true}));
      return tensor;
    }
    throw UsageError("no such tensor");
  }

  test::TempFolder folder_;
  std::optional<Source> source_;
  std::vector<SourceTensor> tensors_;
  Progress progress_;
};

TEST_F(Gather, GivesWhatReadGivesOfAllAtOnce) {
  std::vector<std::vector<std::byte>> memory;
  std::vector<TensorRead> reads;
  for (const SourceTensor& tensor : tensors_) {
    memory.emplace_back(tensor.bytes());
    reads.push_back({&tensor, 0, numel(tensor.shape), memory.back()});
  }
  ASSERT_GT(reads.size(), 40u);
  source_->gather(reads, true, progress_);
  for (size_t i = 0; i < reads.size(); ++i) {
    EXPECT_EQ(memory[i], read(tensors_[i])) << tensors_[i].label();
  }
  EXPECT_GT(progress_.bytes_done, 0u);
  EXPECT_EQ(progress_.bytes_done, progress_.bytes_total);
}

TEST_F(Gather, GivesAnyRangeOfElements) {
  for (const SourceTensor& tensor : tensors_) {
    const std::vector<std::byte> whole = read(tensor);
    const int64_t count = numel(tensor.shape);
    for (const int64_t first : {int64_t{0}, count / 3, count}) {
      const int64_t length = (count - first) / 2;
      const auto begin = whole.begin() + first * static_cast<int64_t>(size_of(tensor.dtype));
      EXPECT_EQ(gather(tensor, first, length),
                std::vector<std::byte>(
                    begin, begin + length * static_cast<int64_t>(size_of(tensor.dtype))));
    }
    EXPECT_ERROR(gather(tensor, 1, count), InconsistentError, "");
  }
  EXPECT_ERROR(gather(tensors_.front(), 0, 1, true, 1), UsageError, "a buffer of 5 bytes");
}

TEST_F(Gather, ComparesEveryRecordThatItReadsFrom) {
  const SourceTensor tensor = damage();
  for (const int64_t count : {int64_t{1}, numel(tensor.shape)}) {
    EXPECT_ERROR(gather(tensor, 0, count), CorruptError, "CRC32 mismatch");
  }
  EXPECT_ERROR(source_->check(tensor, progress_), CorruptError, "CRC32 mismatch");
  EXPECT_EQ(gather(tensor, 0, numel(tensor.shape), false), read(tensor));
  size_t right = 0;
  for (const SourceTensor& other : tensors_) {
    const std::vector<std::string> files = source_->files(other);
    if (files.size() != 1 || optim().string().ends_with(files.front())) continue;
    source_->check(other, progress_);
    EXPECT_EQ(gather(other, 0, numel(other.shape)), read(other));
    ++right;
  }
  EXPECT_GT(right, 0u);
}

TEST_F(Gather, NoticesAFileThatWasWrittenTo) {
  const SourceTensor tensor = tensors_.back();
  gather(tensor, 0, numel(tensor.shape));
  for (const auto& entry : fs::recursive_directory_iterator(folder_.path())) {
    if (entry.is_regular_file())
      std::ofstream(entry.path(), std::ios::app | std::ios::binary) << 'x';
  }
  EXPECT_ERROR(gather(tensor, 0, numel(tensor.shape)), IoError, "");
}

TEST_F(Gather, StopsWhenItIsCancelled) {
  progress_.cancelled = true;
  EXPECT_ERROR(gather(tensors_.front(), 0, 1), InterruptedError, "interrupted");
}

}  // namespace
}  // namespace dsckpt
