// A run announces the reads of far files that it then makes, step by step.
#include "exec/announced_reads.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/kernels.h"
#include "exec/executor.h"
#include "support/random_inputs.h"

namespace dsckpt {
namespace {

using enum DType;
using test::flat;
using test::kMiB;

// Holds the files, and notes what is announced and read.
class NotingReader : public FarReader {
 public:
  void read_at(const std::filesystem::path& path, uint64_t, int64_t, uint64_t offset,
               std::span<std::byte> out) override {
    const FileId file = static_cast<FileId>(path.filename().string().back() - '0');
    const std::lock_guard lock(mutex);
    std::memcpy(out.data(), contents.at(file).data() + offset, out.size());
    if (!is_running) return;
    ++reads;
    bytes_read += out.size();
    const Extent read{file, offset, out.size()};
    if (!is_announced(read)) odd.push_back(read);
  }
  unsigned requests() const override { return 1; }
  std::unique_ptr<FarReadAhead> read_ahead(FarSteps steps) override {
    const std::lock_guard lock(mutex);
    is_running = true;
    most = steps.most;
    expected = steps.bytes;
    for (FarStep step; steps.next(step);) {
      EXPECT_TRUE(announced.empty() || announced.rbegin()->first < step.number);
      for (const Extent& extent : step.extents) {
        bytes_announced += extent.size;
        EXPECT_EQ(steps.files.at(extent.file).filename().string().back() - '0',
                  static_cast<int>(extent.file));
      }
      announced[step.number] = step.extents;
    }
    return std::make_unique<Steps>(*this);
  }

  void clear() {
    odd.clear();
    announced.clear();
    reads = 0;
    bytes_announced = bytes_read = 0;
  }

  std::vector<std::string> contents = {};
  std::mutex mutex = {};
  bool is_running = false;
  uint64_t most = 0;
  uint64_t expected = 0;
  uint64_t bytes_announced = 0;
  uint64_t bytes_read = 0;
  size_t reads = 0;
  std::vector<Extent> odd = {};  // that no step that is under way has announced
  std::map<uint64_t, std::vector<Extent>> announced = {};
  std::multiset<uint64_t> under_way = {};

 private:
  class Steps : public FarReadAhead {
   public:
    explicit Steps(NotingReader& reader) : reader_(reader) {}
    ~Steps() override { reader_.is_running = false; }
    void begin(uint64_t step) override {
      const std::lock_guard lock(reader_.mutex);
      reader_.under_way.insert(step);
    }
    void end(uint64_t step) override {
      const std::lock_guard lock(reader_.mutex);
      reader_.under_way.erase(reader_.under_way.find(step));
    }

   private:
    NotingReader& reader_;
  };

  bool is_announced(const Extent& read) const {
    for (const uint64_t step : under_way) {
      const auto found = announced.find(step);
      if (found == announced.end()) continue;
      for (const Extent& extent : found->second) {
        if (extent.file == read.file && extent.offset <= read.offset &&
            read.end() <= extent.end()) {
          return true;
        }
      }
    }
    return false;
  }
};

// True if steps are under way while it writes.
class SinkThatLooks : public test::MemorySink {
 public:
  SinkThatLooks(const CopyPlan& plan, NotingReader& reader) : MemorySink(plan), reader_(reader) {}
  void write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) override {
    MemorySink::write_at(out, offset, bytes);
    const std::lock_guard lock(reader_.mutex);
    ++writes;
    if (!reader_.under_way.empty()) ++writes_while_read;
  }

  size_t writes = 0;
  size_t writes_while_read = 0;

 private:
  NotingReader& reader_;
};

class AnnouncedReadsTest : public testing::Test {
 protected:
  AnnouncedReadsTest() : reader_(std::make_shared<NotingReader>()) {
    for (uint64_t i = 0; i < 3; ++i) {  // the first MiB of all is the same
      const std::string name = "input" + std::to_string(i);
      reader_->contents.push_back(test::random_bytes(4 * kMiB, i));
      reader_->contents[i].replace(0, kMiB, reader_->contents[0], 0, kMiB);
      make_stand_in(folder_.path() / name, 4 * kMiB, 0);
    }
    mount_far(folder_.path(), kNoMachine, "far", reader_);
    for (uint64_t i = 0; i < 3; ++i) {
      inputs_.add(folder_.path() / ("input" + std::to_string(i)));
    }
  }
  ~AnnouncedReadsTest() override { unmount_far(folder_.path()); }

  CopyPlan plan_of(const TensorSource& source) const {
    PlanBuilder builder;
    builder.add_output("out", 8 + source.nbytes());
    builder.put_literal(0, 0, "12345678");
    builder.put(0, 8, source);
    CopyPlan plan = builder.finish();
    plan.validate(test::planned(inputs_));
    return plan;
  }

  // `exactly`: nothing is announced that is not read.
  void expect_announced(const CopyPlan& plan, ExecOptions options, bool exactly = true) {
    for (const uint64_t unit_bytes : {uint64_t{4096}, kMiB / 4, 8 * kMiB}) {
      for (const unsigned threads : {1u, 3u}) {
        SCOPED_TRACE(std::to_string(threads) + " threads, units of " + std::to_string(unit_bytes));
        reader_->clear();
        options.unit_bytes = unit_bytes;
        options.threads = threads;
        test::MemorySink sink(plan);
        Progress progress;
        const RunStats stats = execute(plan, inputs_, sink, progress, options);
        EXPECT_TRUE(reader_->odd.empty())
            << reader_->odd.size() << ", first: " << reader_->odd.front().offset;
        EXPECT_TRUE(reader_->under_way.empty());
        EXPECT_GT(reader_->reads, 0u);
        EXPECT_EQ(reader_->expected, reader_->bytes_announced);
        EXPECT_LE(reader_->bytes_read, reader_->bytes_announced);
        if (exactly) {
          EXPECT_EQ(reader_->bytes_read, reader_->bytes_announced);
          EXPECT_EQ(stats.bytes_read, reader_->bytes_announced);
        }
      }
    }
  }
  void expect_announced(const TensorSource& source, bool exactly = true) {
    expect_announced(plan_of(source), {}, exactly);
  }

  test::TempFolder folder_;
  std::shared_ptr<NotingReader> reader_;
  InputFiles inputs_;
};

TEST_F(AnnouncedReadsTest, AreThoseOfCopiesAndCasts) {
  std::vector<TensorSource> parts;
  for (uint64_t i = 0; i < 300; ++i) {
    parts.push_back(
        flat(static_cast<FileId>(i % 3), i * 7919 % kMiB * 3, float32, 1 + i * i % 9973));
  }
  const TensorSource all = TensorSource::cat(0, parts);
  expect_announced(all);
  expect_announced(all.to(bfloat16));
  expect_announced(flat(0, 2, float16, kMiB).to(float32));
}

TEST_F(AnnouncedReadsTest, AreThoseOfRows) {
  const TensorSource table = flat(1, 64, float32, 1000 * 1000).view({1000, 1000});
  expect_announced(table.narrow(1, 10, 300), false);  // dense
  const TensorSource wide = flat(2, 64, float32, 100 * 10'000).view({100, 10'000});
  expect_announced(wide.narrow(1, 10, 3000));
  expect_announced(wide.narrow(1, 10, 3000).to(float16));
}

TEST_F(AnnouncedReadsTest, AreThoseOfInterleavedColumns) {
  std::vector<TensorSource> columns;
  columns.push_back(flat(0, 64, float32, 300 * 1000).view({300, 1000}));
  columns.push_back(flat(1, 4, float32, 300 * 10).view({300, 10}));
  columns.push_back(flat(2, 0, float32, 300 * 3000).view({300, 3000}).narrow(1, 500, 2000));
  expect_announced(TensorSource::cat(1, columns));
  expect_announced(TensorSource::cat(1, columns).to(bfloat16));
}

TEST_F(AnnouncedReadsTest, AreThoseOfSeveralOperands) {
  std::vector<TensorSource> copies;
  for (FileId file = 0; file < 3; ++file) copies.push_back(flat(file, 4000, float32, 200'000));
  expect_announced(TensorSource::same(copies, "they"));
  expect_announced(TensorSource::mean(copies).to(float16));
  copies[1] = TensorSource::mean({copies[1], flat(1, kMiB, float32, 200'000)});
  copies[2] = flat(2, kMiB, bfloat16, 200'000);
  expect_announced(TensorSource::weighted_mean(copies, {1, 2, 3}));
}

TEST_F(AnnouncedReadsTest, AreThoseOfRecordsThatAreChecked) {
  ExecOptions options;
  options.check_all_records = true;
  for (FileId file = 0; file < 2; ++file) {
    const std::string_view bytes = std::string_view(reader_->contents[file]).substr(100, kMiB);
    options.records.push_back({{file, 100, kMiB}, crc32(0, as_byte_span(bytes)), "record"});
  }
  expect_announced(plan_of(flat(0, 5000, uint8, 50'000)), options);
}

// A part of an object takes seconds to write; what was read ahead for it would be held as long.
TEST_F(AnnouncedReadsTest, EndBeforeTheyAreWritten) {
  const CopyPlan plan = plan_of(flat(0, 0, uint8, 4 * kMiB));
  SinkThatLooks sink(plan, *reader_);
  Progress progress;
  execute(plan, inputs_, sink, progress, {.threads = 1, .unit_bytes = kMiB / 4});
  EXPECT_EQ(sink.writes, 17u);  // one has 8 bytes
  EXPECT_EQ(sink.writes_while_read, 0u);
}

TEST_F(AnnouncedReadsTest, AreOfWhatIsLeftToDo) {
  // Units of an output of more than 16 MiB are taken one by one.
  const std::vector<TensorSource> parts(5, flat(0, 0, uint8, 4 * kMiB));
  const CopyPlan plan = plan_of(TensorSource::cat(0, parts));
  constexpr uint64_t kUnit = kMiB / 4;
  const RunState from{.unit_bytes = kUnit, .done = {{0, 10}, {20, 75}}};
  test::MemorySink sink(plan);
  Progress progress;
  execute(plan, inputs_, sink, progress,
          {.threads = 1, .unit_bytes = kUnit, .limit_rate = kMiB << 10, .from = &from});
  EXPECT_TRUE(reader_->odd.empty());
  EXPECT_EQ(reader_->bytes_announced, reader_->bytes_read);
  // 80 units, and 8 bytes.
  EXPECT_EQ(reader_->announced.size(), 10u + 81 - 75);
  EXPECT_EQ(reader_->most, 2 * (kMiB << 10));
}

}  // namespace
}  // namespace dsckpt
