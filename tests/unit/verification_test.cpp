// The common parts of the checks of verify(): the list of findings and notes, the compared files,
// and the place of an element.
#include "inspect/verify/verification.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

#include "support/expect_error.h"
#include "support/temp_file.h"
#include "support/zero_checkpoint.h"

namespace dsckpt {
namespace {

using test::ZeroCheckpoint;
using Kind = ShardName::Kind;
using Texts = std::vector<std::string>;

class VerificationTest : public testing::Test {
 protected:
  CheckedFile& add_file(const std::string& display, std::optional<ShardName> name = {}) {
    CheckedFile& file = v_.files.emplace_back();
    file.display = display;
    file.name = name;
    return file;
  }
  const CheckDone& done(Check check) const { return v_.report.checks[static_cast<size_t>(check)]; }

  InputFiles inputs_;
  VerifyOptions options_;
  Progress progress_;
  Verification v_{inputs_, options_, progress_};
};

TEST_F(VerificationTest, OnlyFilesOfRanksHaveARank) {
  const auto rank_of = [](Kind kind) {
    CheckedFile file;
    file.name = ShardName{.kind = kind, .dp_rank = 3, .mp_rank = 2};
    return file.rank();
  };
  for (const Kind kind : {Kind::optim_states, Kind::zero_model_states, Kind::model_states}) {
    ASSERT_TRUE(rank_of(kind).has_value());
    EXPECT_EQ(rank_of(kind)->dp, 3u);
    EXPECT_EQ(rank_of(kind)->mp, 2u);
  }
  EXPECT_FALSE(rank_of(Kind::universal).has_value());
  EXPECT_FALSE(rank_of(Kind::expert).has_value());
  EXPECT_FALSE(CheckedFile().rank().has_value());
}

TEST_F(VerificationTest, AnErrorBecomesAFindingAtItsPlace) {
  const CheckedFile& file =
      add_file("a.pt", ShardName{.kind = Kind::optim_states, .dp_rank = 1, .mp_rank = 0});
  v_.add(Check::layout, file,
         CorruptError({.file = "x", .member = "key", .tensor = "w", .offset = 7}, "is wrong"));
  const Finding& finding = v_.report.findings.at(0);
  EXPECT_EQ(finding.check, Check::layout);
  EXPECT_EQ(finding.message, "is wrong");
  EXPECT_EQ(finding.file, "a.pt");
  EXPECT_EQ(finding.rank->dp, 1u);
  EXPECT_EQ(finding.member, "key");
  EXPECT_EQ(finding.tensor, "w");
  EXPECT_EQ(finding.offset, 7u);
}

TEST_F(VerificationTest, AnErrorThatNamesAFileHasTheRankOfThatFile) {
  add_file("a.pt", ShardName{.kind = Kind::optim_states, .dp_rank = 1, .mp_rank = 0});
  add_file("b.pt", ShardName{.kind = Kind::optim_states, .dp_rank = 2, .mp_rank = 0});
  v_.add(Check::layout, CorruptError({.file = "b.pt"}, "is wrong"));
  EXPECT_EQ(v_.report.findings.at(0).file, "b.pt");
  EXPECT_EQ(v_.report.findings.at(0).rank->dp, 2u);
}

// Files are named by their contents, also those that are stored packed.
TEST_F(VerificationTest, AnErrorInAPackedFileNamesBoth) {
  v_.add(Check::unreadable, CorruptError({.file = "dir/b.pt.dspack"}, "is wrong"));
  EXPECT_EQ(v_.report.findings.at(0).file, "dir/b.pt");
  EXPECT_EQ(v_.report.findings.at(0).message, "is wrong (in b.pt.dspack)");
}

TEST_F(VerificationTest, NotesOfACheckAreJoinedAndNotRepeated) {
  v_.skip(Check::crc, "first");
  EXPECT_FALSE(done(Check::crc).done);
  v_.skip(Check::crc, "second", true);
  v_.skip(Check::crc, "first", true);
  EXPECT_TRUE(done(Check::crc).done);
  EXPECT_EQ(done(Check::crc).why, "first; second");
  EXPECT_EQ(done(Check::layout).why, "");
}

TEST_F(VerificationTest, AnAttemptThatFailsMakesTheFileSuspect) {
  CheckedFile& file = add_file("a.pt");
  v_.attempt(Check::layout, file, [] {});
  EXPECT_FALSE(file.suspect);
  v_.attempt(Check::layout, file, [] { throw InconsistentError({}, "is wrong"); });
  EXPECT_TRUE(file.suspect);
  EXPECT_TRUE(v_.has(Check::layout));
}

TEST_F(VerificationTest, WhatIsNotSupportedIsANoteUnlessTheFileCannotBeOpened) {
  CheckedFile& file = add_file("a.pt");
  v_.attempt(Check::layout, file, [] { throw UnsupportedError({}, "is new"); });
  EXPECT_FALSE(file.suspect);
  EXPECT_TRUE(v_.report.findings.empty());
  EXPECT_TRUE(done(Check::layout).done);
  EXPECT_NE(done(Check::layout).why.find("a.pt: is new"), std::string::npos)
      << done(Check::layout).why;
  v_.attempt(Check::unreadable, file, [] { throw UnsupportedError({}, "is new"); });
  EXPECT_TRUE(file.suspect);
  EXPECT_TRUE(v_.has(Check::unreadable));
}

TEST_F(VerificationTest, AnInterruptGoesOn) {
  CheckedFile& file = add_file("a.pt");
  EXPECT_THROW(v_.attempt(Check::layout, file, [] { throw InterruptedError(); }), InterruptedError);
  EXPECT_TRUE(v_.report.findings.empty());
  v_.stop_if_cancelled();
  progress_.cancelled = true;
  EXPECT_THROW(v_.stop_if_cancelled(), InterruptedError);
}

TEST_F(VerificationTest, AChecksumIsNoReportOfWhatTheFileSays) {
  v_.add({.check = Check::crc, .message = "m", .file = "a.pt"});
  EXPECT_FALSE(v_.is_reported("a.pt"));
  v_.add({.check = Check::layout, .message = "m", .file = "a.pt"});
  EXPECT_TRUE(v_.is_reported("a.pt"));
  EXPECT_FALSE(v_.is_reported("b.pt"));
}

TEST(Voting, FirstEqualsIsTheFirstOfEachKind) {
  const std::vector<int> values = {7, 8, 7, 9, 8};
  for (const uint64_t last : {0u, 1u, 8u}) {  // of several kinds, or of one
    EXPECT_EQ(first_equals(
                  values.size(), [&](size_t i) { return static_cast<uint64_t>(values[i]) & last; },
                  [&](size_t i, size_t j) { return values[i] == values[j]; }),
              (std::vector<size_t>{0, 1, 0, 3, 1}));
  }
}

TEST(Voting, TheLargestKindIsTheFirstOfAsMany) {
  EXPECT_EQ(largest_kind({}), 0u);
  EXPECT_EQ(largest_kind({0, 1, 1}), 1u);
  EXPECT_EQ(largest_kind({0, 1, 0, 1}), 0u);
  EXPECT_EQ(largest_kind({0, 1, 2}), 0u);
}

TEST(ForEachIndex, RunsEachOnceAndHandsOnWhatIsThrown) {
  std::vector<std::atomic<int>> calls(1000);
  for_each_index(calls.size(), [&](size_t i) { ++calls[i]; });
  for (const auto& count : calls) EXPECT_EQ(count, 1);
  for_each_index(0, [](size_t) { FAIL(); });
  EXPECT_THROW(for_each_index(10,
                              [](size_t i) {
                                if (i == 3) throw std::out_of_range("3");
                              }),
               std::out_of_range);
}

class PlacesTest : public VerificationTest {
 protected:
  PlacesTest() {
    first_ = inputs_.add(folder_.write("first", std::string(64, 'a')));
    second_ = inputs_.add(folder_.write("second", std::string(64, 'b')));
    add_file("first").id = first_;
    add_file("second").id = second_;
  }

  TensorSource stored(FileId file, uint64_t offset, int64_t count) const {
    return TensorSource::stored({file, offset, static_cast<uint64_t>(count) * 4}, DType::float32,
                                {count});
  }

  test::TempFolder folder_;
  FileId first_ = 0;
  FileId second_ = 0;
};

TEST_F(PlacesTest, AnElementLiesInItsPart) {
  const TensorSource whole = TensorSource::cat(0, {stored(first_, 8, 3), stored(second_, 16, 4)});
  EXPECT_EQ(place_of(whole, 2)->file, first_);
  EXPECT_EQ(place_of(whole, 2)->offset, 16u);
  EXPECT_EQ(place_of(whole, 4)->file, second_);
  EXPECT_EQ(place_of(whole, 4)->offset, 20u);
  EXPECT_FALSE(place_of(TensorSource::zeros(DType::float32, {2}), 0).has_value());
}

TEST_F(PlacesTest, OfCopiesTheFirstIsThePlace) {
  const TensorSource same =
      TensorSource::same({stored(first_, 8, 3), stored(second_, 16, 3)}, "copies");
  EXPECT_EQ(place_of(same, 1)->file, first_);
  EXPECT_EQ(place_of(same, 1)->offset, 12u);
}

TEST_F(PlacesTest, ATensorIsDoubtfulWhoseRecordIsDamagedOrWhoseFileIsSuspect) {
  const TensorSource tensor = stored(first_, 8, 4);  // bytes 8 to 24
  const TensorSource same =
      TensorSource::same({stored(second_, 0, 4), stored(first_, 8, 4)}, "copies");
  EXPECT_FALSE(v_.is_doubtful(tensor));
  v_.set_damaged({{second_, 32, 32}, {first_, 24, 8}});
  EXPECT_FALSE(v_.is_doubtful(tensor));
  EXPECT_FALSE(v_.is_doubtful(same));
  v_.set_damaged({{second_, 32, 32}, {first_, 24, 8}, {first_, 0, 16}});
  EXPECT_TRUE(v_.is_doubtful(tensor));
  EXPECT_TRUE(v_.is_doubtful(same));
  v_.set_damaged({});
  EXPECT_FALSE(v_.is_doubtful(tensor));
  v_.files[0].suspect = true;
  EXPECT_TRUE(v_.is_doubtful(tensor));
  EXPECT_FALSE(v_.is_doubtful(stored(second_, 0, 4)));
  EXPECT_FALSE(v_.is_doubtful(TensorSource::zeros(DType::float32, {2})));
}

TEST_F(PlacesTest, AFileIsFoundByItsId) {
  EXPECT_EQ(v_.file_of(second_)->display, "second");
  EXPECT_EQ(v_.file_of(second_ + 1), nullptr);
  EXPECT_EQ(v_.record_at(second_, 0), "");
}

// Findings stand in the order of the checks, then of the files and offsets.
TEST(VerifyReportTest, FindingsAreInOrder) {
  ZeroCheckpoint checkpoint(4);
  checkpoint.optim(2)["clip_grad"] = 2.0;
  checkpoint.optim(1)["clip_grad"] = 2.0;
  checkpoint.optim(3)["zero_stage"] = 2;
  const Texts findings = checkpoint.findings();
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_EQ(findings[0].rfind("step " + ZeroCheckpoint::optim_name(1), 0), 0u) << findings[0];
  EXPECT_EQ(findings[1].rfind("step " + ZeroCheckpoint::optim_name(2), 0), 0u) << findings[1];
  EXPECT_EQ(findings[2].rfind("layout " + ZeroCheckpoint::optim_name(3), 0), 0u) << findings[2];
}

TEST(VerifyReportTest, ChecksThatWereNotMadeSayWhy) {
  ZeroCheckpoint checkpoint(2);
  const VerifyReport report = checkpoint.verify();
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.form, "zero");
  EXPECT_EQ(report.files, 3u);
  const auto& finite = report.checks[static_cast<size_t>(Check::nonfinite)];
  EXPECT_FALSE(finite.done);
  EXPECT_EQ(finite.why, "not asked for (--finite)");
  const auto& index = report.checks[static_cast<size_t>(Check::index)];
  EXPECT_FALSE(index.done);
  EXPECT_EQ(index.why, "has no meaning here");
  EXPECT_TRUE(report.checks[static_cast<size_t>(Check::rounding)].done);
}

TEST(VerifyReportTest, JsonLeavesOutWhatIsUnknown) {
  VerifyReport report;
  report.form = "zero";
  report.findings.push_back({.check = Check::wrong_rank, .message = "m", .file = {}});
  report.findings.push_back({.check = Check::crc,
                             .message = "n",
                             .file = "f",
                             .rank = FindingRank{1, 2},
                             .member = "k",
                             .tensor = "t",
                             .offset = 0,
                             .size = 4});
  const nlohmann::json data = verify_json(report);
  EXPECT_EQ(data["ok"], false);
  EXPECT_EQ(data["findings"][0].dump(), R"({"check":"wrong-rank","message":"m"})");
  EXPECT_EQ(data["findings"][1].dump(),
            R"({"check":"crc","file":"f","member":"k","message":"n","offset":0,)"
            R"("rank":{"dp":1,"mp":2},"size":4,"tensor":"t"})");
  EXPECT_EQ(data["checks"].size(), kCheckCount);
}

}  // namespace
}  // namespace dsckpt
