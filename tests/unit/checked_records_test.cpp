#include "format/checked_records.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/kernels.h"
#include "dsckpt/error.h"
#include "dsckpt/run.h"
#include "job/job_impl.h"
#include "support/expect_error.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {
namespace fs = std::filesystem;

using Names = std::vector<std::string>;

const fs::path kFormats = fs::path(DSCKPT_TESTDATA) / "formats";

Names names_of(const std::vector<InputRecord>& records) {
  Names names;
  for (const InputRecord& record : records) names.push_back(record.name);
  return names;
}

class CheckedRecords : public testing::Test {
 protected:
  void read(uint64_t begin, uint64_t end) {
    const uint64_t size = end - begin;
    const OutputId out = plan_.add_output("out" + std::to_string(outputs_++), size);
    plan_.put(
        out, 0,
        TensorSource::stored({file_, begin, size}, DType::uint8, {static_cast<int64_t>(size)}));
  }

  InputFiles inputs_;
  FileId file_ = inputs_.add(kFormats / "small.pt");
  PlanBuilder plan_;
  int outputs_ = 0;
};

TEST_F(CheckedRecords, AreAllWithTheirCrc) {
  const auto records = all_records(inputs_, {file_, file_});
  ASSERT_EQ(records.size(), 7u);
  EXPECT_EQ(records[4].name, "small/data/0");
  EXPECT_EQ(records[4].extent.size, 16u);
  EXPECT_EQ(records[4].crc32, 0x25601b8bu);  // of the four floats, by Python's zlib.crc32
  EXPECT_EQ(records[3].crc32, 0x19e33d85u);  // of "little"
}

TEST_F(CheckedRecords, AreNoneWhereThereAreNoChecksums) {
  for (const char* name : {"small_legacy.pt", "no_crc.pt", "small.safetensors"}) {
    if (!fs::exists(kFormats / name)) continue;
    EXPECT_TRUE(all_records(inputs_, {inputs_.add(kFormats / name)}).empty()) << name;
  }
}

TEST_F(CheckedRecords, AreThoseOfWhichAByteIsRead) {
  const auto records = all_records(inputs_, {file_});
  const Extent data = records[4].extent;
  read(data.offset + 3, data.offset + 4);
  EXPECT_EQ(names_of(records_read(plan_.finish(), inputs_)), (Names{"small/data/0"}));
  read(records[1].extent.offset, records[2].extent.offset + 1);
  EXPECT_EQ(names_of(records_read(plan_.finish(), inputs_)),
            (Names{records[1].name, records[2].name}));
  read(0, inputs_[file_].size());
  EXPECT_EQ(records_read(plan_.finish(), inputs_).size(), 7u);
  EXPECT_TRUE(records_read(CopyPlan(), inputs_).empty());
}

TEST_F(CheckedRecords, AreThoseOfAnOpenArchiveWithoutItsDirectory) {
  const test::TempFolder folder;
  std::string bytes = test::read_all(kFormats / "small.pt");
  InputFiles inputs;
  const FileId file = inputs.add(folder.write("small.pt", bytes));
  const TorchArchive archive = TorchArchive::open(inputs, file);
  const Names names = names_of(all_records(inputs, {file}));
  std::fill(bytes.end() - 22, bytes.end(), '\0');  // where the directory is said to be
  folder.write("small.pt", bytes);
  EXPECT_EQ(names_of(all_records(inputs, {file}, Frames::checked, {&archive})), names);
  EXPECT_THROW(all_records(inputs, {file}), CorruptError);
}

TEST_F(CheckedRecords, AreTheEndsOfTheItemsOfAFile) {
  const OutputId out = plan_.add_output("copy.pt", inputs_[file_].size());
  put_file(plan_, out, inputs_, file_);
  const CopyPlan plan = plan_.finish();
  for (const InputRecord& record : all_records(inputs_, {file_})) {
    EXPECT_EQ(std::count_if(plan.items().begin(), plan.items().end(),
                            [&](const CopyItem& item) {
                              return item.source.span(item.rows) == record.extent;
                            }),
              1)
        << record.name;
  }
  EXPECT_EQ(plan.bytes_written(), inputs_[file_].size());
}

// A plan says nothing of checksums, and no byte of a damaged record gets out.
TEST(Job, CannotPassOnARecordThatNobodyChecks) {
  InputFiles clean;
  const auto records = all_records(clean, {clean.add(kFormats / "small.pt")});
  for (const InputRecord& record : records) {
    SCOPED_TRACE(record.name);
    const test::TempFolder folder;
    std::string bytes = test::read_all(kFormats / "small.pt");
    const auto at = static_cast<size_t>(record.extent.offset);
    bytes[at + record.extent.size - 1] ^= 0x10;
    auto inputs = std::make_shared<InputFiles>();
    const FileId file = inputs->add(folder.write("flipped.pt", bytes));
    PlanBuilder plan;
    plan.add_output("first_byte", 1);
    plan.put(0, 0, TensorSource::stored({file, record.extent.offset, 1}, DType::uint8, {1}));
    Job::Impl job{.inputs = inputs, .plan = {}};
    set_plan(job, plan);
    EXPECT_ERROR(run(Job(std::move(job)), folder.path() / "out"), CorruptError,
                 record.name + ": at ");
    EXPECT_FALSE(fs::exists(folder.path() / "out" / "first_byte"));
  }
}

}  // namespace
}  // namespace dsckpt
