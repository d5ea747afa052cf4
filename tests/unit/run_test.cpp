// Jobs as users of the library run them: <dsckpt/...> only.
#include "dsckpt/run.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "dsckpt/error.h"
#include "dsckpt/pack.h"
#include "dsckpt/reshard.h"
#include "dsckpt/universal.h"
#include "dsckpt/weights.h"
#include "support/expect_error.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {
namespace fs = std::filesystem;

const fs::path kCheckpoint = fs::path(DSCKPT_TESTDATA) / "checkpoints/z2_bf16_w2/ckpt";

TEST(Run, TellsTheCallbackWhatIsDoneAtTheEnd) {
  const test::TempFolder out;
  const Job job = plan_weights(Source::open(kCheckpoint));
  std::atomic<uint64_t> done{0};
  std::atomic<uint64_t> total{0};
  const RunStats stats = run(job, out.path() / "weights", {}, [&](uint64_t now, uint64_t all) {
    done = now;
    total = all;
    return true;
  });
  EXPECT_EQ(stats.bytes_written, job.bytes_written());
  EXPECT_GE(total.load(), job.bytes_written());
  EXPECT_EQ(done.load(), total.load());
  for (const JobFile& file : job.files()) {
    EXPECT_EQ(fs::file_size(out.path() / "weights" / file.path), file.bytes) << file.path;
  }
}

// The callback is asked about ten times a second: the input is long enough to be in the middle.
TEST(Run, StopsWhenTheCallbackSaysSoAndLeavesNothing) {
  const test::TempFolder folder;
  {
    std::ofstream file(folder.path() / "zeros.bin");
    file.close();
    fs::resize_file(folder.path() / "zeros.bin", uint64_t{8} << 30);  // sparse
  }
  const test::TempFolder out;
  const Job job = plan_unpack(folder.path());
  if (fs::space(out.path()).available < (uint64_t{9} << 30)) GTEST_SKIP() << "no room for 8 GiB";
  EXPECT_ERROR(run(job, out.path() / "copy", {}, [](uint64_t, uint64_t) { return false; }),
               InterruptedError, "interrupted");
  EXPECT_TRUE(fs::is_empty(out.path()));
}

struct Enough {};

TEST(Run, ThrowsWhatTheCallbackThrowsAndLeavesNothing) {
  // Many files at a rate that would take a minute, if nobody stopped it.
  const Job job = plan_weights(Source::open(kCheckpoint), {.max_shard_size = 500});
  const RunOptions slow{.limit_rate = 200};
  for (const int calls : {1, 3}) {
    const test::TempFolder out;
    int left = calls;
    EXPECT_ERROR(run(job, out.path() / "weights", slow,
                     [&](uint64_t, uint64_t) -> bool {
                       if (--left == 0) throw std::out_of_range("enough");
                       return true;
                     }),
                 std::out_of_range, "enough");
    EXPECT_EQ(left, 0);  // nobody asks it any more
    EXPECT_TRUE(fs::is_empty(out.path()));
    EXPECT_THROW(
        run(job, out.path() / "weights", slow, [](uint64_t, uint64_t) -> bool { throw Enough(); }),
        Enough);
    EXPECT_TRUE(fs::is_empty(out.path()));
  }
}

TEST(Run, KeepsWhatIsDoneIfTheCallbackThrowsAndItCanGoOn) {
  const test::TempFolder out;
  const Job job = plan_weights(Source::open(kCheckpoint), {.max_shard_size = 500});
  EXPECT_THROW(run(job, out.path() / "weights", {.limit_rate = 200, .resume = true},
                   [](uint64_t, uint64_t) -> bool { throw Enough(); }),
               Enough);
  ASSERT_FALSE(fs::is_empty(out.path()));
  // As in another process: the signature says that this one is at work.
  fs::remove(fs::directory_iterator(out.path())->path() / "owner");
  run(job, out.path() / "weights", {.resume = true});
  for (const JobFile& file : job.files()) {
    EXPECT_EQ(fs::file_size(out.path() / "weights" / file.path), file.bytes) << file.path;
  }
}

// A run so short that it is only asked when all is done.
TEST(Run, LeavesTheOutputIfTheLastCallThrows) {
  const test::TempFolder out;
  const Job job = plan_weights(Source::open(kCheckpoint));
  EXPECT_THROW(run(job, out.path() / "weights", {},
                   [](uint64_t done, uint64_t total) -> bool {
                     if (total > 0 && done == total) throw Enough();
                     return true;
                   }),
               Enough);
  for (const JobFile& file : job.files()) {
    EXPECT_EQ(fs::file_size(out.path() / "weights" / file.path), file.bytes) << file.path;
  }
}

TEST(Run, SaysWhatHasFailedBeforeTheCallbackThrew) {
  const test::TempFolder folder;
  const Job job = plan_weights(Source::open(kCheckpoint));
  folder.write("weights", "a file");
  EXPECT_ERROR(
      run(job, folder.path() / "weights", {}, [](uint64_t, uint64_t) -> bool { throw Enough(); }),
      UsageError, "is not a folder");
}

TEST(Run, ChecksThePlaceBeforeAnything) {
  const Job job = plan_universal(Source::open(kCheckpoint, {.optimizer_states = true}));
  EXPECT_ERROR(run(job, kCheckpoint / "global_step3/universal"), UsageError,
               "lies inside the folder of the shards");
}

TEST(Run, OutlivesTheSource) {
  const test::TempFolder out;
  const Job job = [] {
    const Source source = Source::open(kCheckpoint);
    return plan_weights(source, {.format = &kSafetensors});
  }();
  run(job, out.path());
  EXPECT_TRUE(fs::exists(out.path() / "model.safetensors"));
}

// Zero ranks once ended in a division by zero.
TEST(Reshard, RefusesWhatIsOutOfRange) {
  const Source source = Source::open(kCheckpoint, {.optimizer_states = true});
  EXPECT_ERROR(plan_reshard(source, {.dp = 0}), UsageError, "0 data-parallel ranks");
  EXPECT_ERROR(plan_reshard(source, {.dp = kMaxRanks + 1}), UsageError, "65537 data-parallel");
  EXPECT_ERROR(plan_reshard(source, {.ep = 0}), UsageError, "0 expert-parallel ranks");
  EXPECT_ERROR(plan_reshard(source, {.stage = 4}), UsageError, "no stage 4");
  EXPECT_ERROR(plan_reshard(source, {.stage = -1}), UsageError, "no stage -1");
  EXPECT_ERROR(plan_reshard(source, {.sub_group_size = 0}), UsageError, "0 elements");
}

TEST(Source, ReadsWhatItViews) {
  const Source source = Source::open(kCheckpoint, {.optimizer_states = true});
  size_t viewed = 0;
  size_t states = 0;
  for (const SourceTensor& tensor : source.tensors()) {
    std::vector<std::byte> bytes(tensor.bytes());
    source.read(tensor, bytes);
    states += tensor.state.empty() ? 0 : 1;
    const auto view = source.view(tensor);
    if (!view || tensor.shape.size() != 1) continue;
    ASSERT_EQ(view->strides.size(), 1u);
    if (view->strides[0] != 1) continue;
    ++viewed;
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), view->data.get())) << tensor.label();
  }
  EXPECT_GT(viewed, 0u);
  EXPECT_GT(states, 0u);
}

TEST(Source, RefusesAnUnknownTensorAndAWrongSize) {
  const Source source = Source::open(kCheckpoint);
  SourceTensor tensor = source.tensors().front();
  std::vector<std::byte> bytes(tensor.bytes() + 1);
  EXPECT_ERROR(source.read(tensor, bytes), UsageError, "bytes");
  tensor.name = "no.such.tensor";
  EXPECT_ERROR(source.read(tensor, bytes), UsageError, "there is no tensor");
}

}  // namespace
}  // namespace dsckpt
