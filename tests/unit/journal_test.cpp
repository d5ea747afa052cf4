#include "exec/journal.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/kernels.h"
#include "dsckpt/error.h"
#include "plan/plan_digest.h"
#include "support/expect_error.h"
#include "support/own_folder.h"
#include "support/plan_tools.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::own;
using test::read_all;
using test::TempFolder;

Reached sample() {
  Reached reached;
  reached.run = {.unit_bytes = 4096,
                 .done = {{0, 17}, {20, 31}},
                 .bytes_read = uint64_t{1} << 60,
                 .digests = {{3, 5, 7, 0xffffffff}, {4, 0, 1, 0}},
                 .records = {{2, 64, 128, 9}}};
  reached.sums = {.written = {{1, 2, 3, 4}, {5, 6, 7, 8}}};
  reached.bytes_stored = 12;
  return reached;
}

TEST(Journal, GivesBackWhatWasSaved) {
  const TempFolder folder;
  EXPECT_FALSE(load_reached(own(folder.path())));
  save_reached(own(folder.path()), {});
  EXPECT_TRUE(load_reached(own(folder.path()))->run.done.empty());
  save_reached(own(folder.path()), sample());
  const Reached got = load_reached(own(folder.path())).value();
  EXPECT_EQ(got.run.unit_bytes, 4096u);
  ASSERT_EQ(got.run.done.size(), 2u);
  EXPECT_EQ(got.run.done[0].last, 17u);
  EXPECT_EQ(got.run.done[1].first, 20u);
  EXPECT_EQ(got.run.done[1].last, 31u);
  EXPECT_EQ(got.run.bytes_read, uint64_t{1} << 60);
  EXPECT_EQ(got.bytes_stored, 12u);
  ASSERT_EQ(got.run.digests.size(), 2u);
  EXPECT_EQ(got.run.digests[0].digest, 3u);
  EXPECT_EQ(got.run.digests[0].begin, 5u);
  EXPECT_EQ(got.run.digests[0].size, 7u);
  EXPECT_EQ(got.run.digests[0].crc, 0xffffffff);
  EXPECT_EQ(got.run.digests[1].digest, 4u);
  ASSERT_EQ(got.run.records.size(), 1u);
  EXPECT_EQ(got.run.records[0].record, 2u);
  EXPECT_EQ(got.run.records[0].offset, 64u);
  EXPECT_EQ(got.run.records[0].size, 128u);
  EXPECT_EQ(got.run.records[0].crc, 9u);
  ASSERT_EQ(got.sums.written.size(), 2u);
  EXPECT_EQ(got.sums.written[1].out, 5u);
  EXPECT_EQ(got.sums.written[1].offset, 6u);
  EXPECT_EQ(got.sums.written[1].size, 7u);
  EXPECT_EQ(got.sums.written[1].crc, 8u);
}

TEST(Journal, RefusesEveryTruncationAndEveryFlippedBit) {
  const TempFolder folder;
  save_reached(own(folder.path()), sample());
  const std::string whole = read_all(folder.path() / "journal");
  for (size_t size = 0; size < whole.size(); ++size) {
    folder.write("journal", whole.substr(0, size));
    EXPECT_ERROR(load_reached(own(folder.path())), IoError, "is damaged");
  }
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    folder.write("journal", flipped);
    EXPECT_ERROR(load_reached(own(folder.path())), IoError, "is damaged");
  }
}

TEST(Journal, RefusesWhatIsNestedTooDeeply) {
  const TempFolder folder;
  const std::string nested(1'000'000, '\x81');  // an array of one, in CBOR
  std::string checked;
  append_le(checked, crc32(0, as_byte_span(nested)));
  folder.write("journal", checked + nested);
  EXPECT_ERROR(load_reached(own(folder.path())), IoError, "is damaged");
}

// The journal of sample(), with another value for one of its members.
std::string sample_with(const TempFolder& folder, const std::string& member, const json& value) {
  save_reached(own(folder.path()), sample());
  json saved = json::from_cbor(read_all(folder.path() / "journal").substr(sizeof(uint32_t)));
  saved[json::json_pointer(member)] = value;
  std::string body;
  json::to_cbor(saved, body);
  std::string checked;
  append_le(checked, crc32(0, as_byte_span(body)));
  return checked + body;
}

TEST(Journal, RefusesNumbersThatItDoesNotWrite) {
  const TempFolder folder;
  folder.write("journal", sample_with(folder, "/bytes_read", 5));
  EXPECT_EQ(load_reached(own(folder.path()))->run.bytes_read, 5u);
  for (const std::string member : {"/unit_bytes", "/bytes_read", "/bytes_stored", "/done/0/0",
                                   "/digests/3/1", "/records/0/0", "/written/1/0"}) {
    for (const json& value : {json(-1), json(1.5), json(1e300), json(std::nan("")), json(true),
                              json("1"), json(), json::array({1})}) {
      folder.write("journal", sample_with(folder, member, value));
      SCOPED_TRACE(member + value.dump());
      EXPECT_ERROR(load_reached(own(folder.path())), IoError, "is damaged");
    }
  }
  for (const char* member : {"/records/0/0", "/records/3/0", "/written/0/0"}) {
    folder.write("journal", sample_with(folder, member, uint64_t{1} << 32));
    SCOPED_TRACE(member);
    EXPECT_ERROR(load_reached(own(folder.path())), IoError, "is damaged");
  }
  for (const char* column : {"/done/1", "/digests/2", "/written/3"}) {
    folder.write("journal", sample_with(folder, column, json::array({1, 2, 3})));
    SCOPED_TRACE(column);
    EXPECT_ERROR(load_reached(own(folder.path())), IoError, "is damaged");
  }
}

TEST(Journal, IsNoFolder) {
  const TempFolder folder;
  fs::create_directory(folder.path() / "journal");
  EXPECT_ERROR(load_reached(own(folder.path())), UsageError, "is a folder of user");
}

class JobIdentityTest : public testing::Test {
 protected:
  JobIdentityTest() {
    save_job(own(folder_.path()), job_);
    EXPECT_TRUE(has_job(own(folder_.path())));
  }
  std::string difference() const { return difference_from_saved(own(folder_.path()), job_); }

  const TempFolder folder_;
  JobIdentity job_{.inputs = {{"/in/a.pt", 10, 1}, {"/in/b\\xff.pt", 20, 2}},
                   .outputs = {{"model.bin", 30}},
                   .plan = "abc",
                   .options = ""};
};

TEST_F(JobIdentityTest, IsTheSameJob) {
  EXPECT_EQ(difference(), "");
  const Folder again = test::make_own(folder_.path() / "again");
  save_job(again, job_);
  save_reached(again, sample());
  EXPECT_EQ(remove_staging_folder(Folder::at(folder_.path()), again), 0);
  EXPECT_FALSE(fs::exists(again.path()));
}

// A copied journal has not been compared with the files beside it.
TEST_F(JobIdentityTest, IsOfItsFolder) {
  const Folder again = test::make_own(folder_.path() / "again");
  fs::copy_file(folder_.path() / "job", again.path() / "job");
  EXPECT_EQ(difference_from_saved(again, job_), "it was started in another folder");
  EXPECT_EQ(difference(), "");
}

// Files that others may have made, or can change, are not read.
TEST(Journal, IsAFileWithOneName) {
  const TempFolder folder;
  save_reached(own(folder.path()), sample());
  const fs::path journal = folder.path() / "journal";
  fs::create_hard_link(journal, folder.path() / "other");
  EXPECT_ERROR(load_reached(own(folder.path())), UsageError, "has 2 names");
  fs::remove(journal);
  fs::create_symlink("other", journal);
  EXPECT_ERROR(load_reached(own(folder.path())), UsageError, "is a link of user");
  fs::remove(journal);
  ASSERT_EQ(::mkfifo(journal.c_str(), 0600), 0);
  EXPECT_ERROR(load_reached(own(folder.path())), UsageError, "is a FIFO of user");
}

TEST_F(JobIdentityTest, WithMoreThatIsNestedTooDeeplyIsDamaged) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  const std::string job = read_all(folder_.path() / "job");
  folder_.write("job", "{\"more\":" + deep + "," + job.substr(1));
  EXPECT_ERROR(difference(), IoError, "is damaged");
  EXPECT_ERROR(save_written(own(folder_.path()), 1), IoError, "is damaged");
}

TEST_F(JobIdentityTest, WithNumbersThatNobodyWritesIsDamaged) {
  json job = json::parse(read_all(folder_.path() / "job"));
  for (const json& number : {json(18446744073709551616.0), json(1.5), json(-1), json("7")}) {
    job["written"] = number;
    folder_.write("job", job.dump());
    SCOPED_TRACE(number);
    EXPECT_ERROR(load_written(own(folder_.path())), IoError, "is damaged");
  }
  job["written"] = 7;
  job["inputs"][0][1] = 1e300;
  folder_.write("job", job.dump());
  EXPECT_ERROR(difference(), IoError, "is damaged");
}

TEST_F(JobIdentityTest, SaysInTheEndThatAllIsWritten) {
  EXPECT_FALSE(load_written(own(folder_.path())));
  save_written(own(folder_.path()), ~uint64_t{0});
  EXPECT_EQ(load_written(own(folder_.path())), ~uint64_t{0});
  EXPECT_EQ(difference(), "");
}

TEST_F(JobIdentityTest, SaysWhatIsDifferent) {
  const JobIdentity same = job_;
  const auto expect = [&](const std::string& text) {
    EXPECT_EQ(difference(), text);
    job_ = same;
  };
  job_.inputs[0].size = 11;
  expect("/in/a.pt has 11 bytes, and not 10");
  job_.inputs[0].modified = 2;
  expect("/in/a.pt was written to since");
  job_.inputs[0].path = "/in/c.pt";
  expect("it reads /in/c.pt, and not /in/a.pt");
  job_.inputs.pop_back();
  expect("it reads 1 file, and not 2");
  job_.outputs[0].size = 31;
  expect("model.bin has 31 bytes, and not 30");
  job_.outputs[0].path = "other.bin";
  expect("it makes other.bin, and not model.bin");
  job_.options = "--verify";
  expect("its options are '--verify', and not ''");
  job_.plan = "abd";
  expect("it writes different contents");
}

TEST_F(JobIdentityTest, IsOneOfThisProgram) {
  folder_.write("job", "{\"version\": 99}");
  EXPECT_EQ(difference(), "another release of this program started it");
  for (const char* text : {"", "{", "[]", "{\"version\": 5}", "\xff"}) {
    folder_.write("job", text);
    EXPECT_ERROR(difference(), IoError, "is damaged");
  }
}

TEST(PlanDigest, IsOfEveryPartOfAPlan) {
  const auto plan = [](auto change) {
    PlanBuilder builder;
    const OutputId out = builder.add_output("a", 24);
    builder.put_literal(out, 0, "12345678");
    builder.put(out, 8, TensorSource::stored({0, 0, 16}, DType::uint8, {16}));
    change(builder);
    return digest_of(builder.finish());
  };
  const auto same = [](PlanBuilder&) {};
  std::vector<Sha256Digest> digests{
      plan(same),
      plan([](PlanBuilder& builder) { builder.add_output("b", 0); }),
      plan([](PlanBuilder& builder) { builder.add_output("c", 0); }),
      plan([](PlanBuilder& builder) {
        builder.add_digest({0, 8, 24, {0}});
      }),
      plan([](PlanBuilder& builder) {
        builder.add_digest({0, 8, 24, {4}});
      }),
      plan([](PlanBuilder& builder) { builder.put_literal(builder.add_output("b", 1), 0, "x"); }),
      plan([](PlanBuilder& builder) { builder.put_literal(builder.add_output("b", 1), 0, "y"); }),
      plan([](PlanBuilder& builder) {
        builder.put(builder.add_output("b", 1), 0,
                    TensorSource::stored({0, 3, 1}, DType::uint8, {1}));
      }),
      plan([](PlanBuilder& builder) {
        builder.put(builder.add_output("b", 1), 0,
                    TensorSource::stored({1, 3, 1}, DType::uint8, {1}));
      })};
  EXPECT_EQ(digests[0], plan(same));
  std::sort(digests.begin(), digests.end());
  EXPECT_EQ(std::adjacent_find(digests.begin(), digests.end()), digests.end());
}

}  // namespace
}  // namespace dsckpt
