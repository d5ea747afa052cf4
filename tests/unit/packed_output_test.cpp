#include "exec/packed_output.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "codec/frame.h"
#include "exec/staged_output.h"
#include "io/packed_file.h"
#include "support/expect_error.h"
#include "support/packed_tools.h"
#include "support/plan_runner.h"
#include "support/plan_tools.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

namespace fs = std::filesystem;
using test::Content;
using test::read_all;
using test::TempFolder;

using test::kMiB;

// Files of any size in memory. A byte that is written twice, or never, throws.
class GrowingSink : public Sink {
 public:
  explicit GrowingSink(size_t outputs) : outputs_(outputs), written_(outputs), done_(outputs) {}

  void write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) override {
    const std::lock_guard lock(mutex_);
    if (done_.at(out)) throw std::logic_error("written after the end");
    std::string& file = outputs_.at(out);
    if (file.size() < offset + bytes.size()) file.resize(offset + bytes.size());
    std::memcpy(file.data() + offset, bytes.data(), bytes.size());
    written_[out] += bytes.size();
  }
  void finish(OutputId out) override {
    const std::lock_guard lock(mutex_);
    if (done_.at(out)) throw std::logic_error("finished twice");
    if (written_[out] != outputs_[out].size()) throw std::logic_error("written twice or never");
    done_[out] = true;
  }

  const std::vector<std::string>& outputs() const { return outputs_; }
  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const std::string& file : outputs_) sum += file.size();
    return sum;
  }
  bool all_finished() const { return std::find(done_.begin(), done_.end(), false) == done_.end(); }

 private:
  std::mutex mutex_;
  std::vector<std::string> outputs_;
  std::vector<uint64_t> written_;
  std::vector<bool> done_;
};

std::string content_of(const std::string& packed) {
  const test::StoredBytes stored(packed);
  PackedFile file(stored);
  return test::read_content(file);
}

class PackedOutputTest : public testing::Test {
 protected:
  PackedOutputTest() {
    using test::make_content;
    floats_ = inputs_.add(folder_.write("floats", make_content(Content::normal_floats, 5 * kMiB)));
    random_ = inputs_.add(folder_.write("random", make_content(Content::random, 2 * kMiB)));
    text_ = inputs_.add(folder_.write("text", make_content(Content::text, 2 * kMiB)));
    PlanBuilder builder;
    add_archive(builder);
    put(builder, "small.pt", {{floats_, DType::float32, 4000}});
    put(builder, "empty.bin", {});
    put(builder, "one.pth", {{random_, DType::uint8, 1}});
    put(builder, "odd.safetensors",
        {{random_, DType::uint8, 4099},
         {floats_, DType::float32, 3 * kMiB + 4},
         {random_, DType::int64, 8008},
         {floats_, DType::bfloat16, kMiB + 2}});
    put(builder, "config.json", {{text_, DType::uint8, kMiB + 77}});
    const OutputId zeros = builder.add_output("sub/zeros.pt", 3 * kMiB + 4);
    builder.put(zeros, 0, TensorSource::zeros(DType::float32, {3 * kMiB / 4 + 1}));
    put(builder, "sub/latest", {{text_, DType::uint8, 5}});
    plan_ = builder.finish();
    expected_ = test::run_plan(plan_, inputs_);
  }

  struct Piece {
    FileId file;
    DType dtype;
    uint64_t size;
  };
  static OutputId put(PlanBuilder& builder, const std::string& path,
                      const std::vector<Piece>& pieces) {
    uint64_t size = 0;
    for (const Piece& piece : pieces) size += piece.size;
    const OutputId out = builder.add_output(path, size);
    uint64_t at = 0;
    for (const auto& [file, dtype, bytes] : pieces) {
      builder.put(out, at,
                  TensorSource::stored({file, 0, bytes}, dtype,
                                       {static_cast<int64_t>(bytes / size_of(dtype))}));
      at += bytes;
    }
    return out;
  }

  // As zip archives are: digests of what lies between, patched in front of it and behind all.
  void add_archive(PlanBuilder& builder) {
    const uint64_t first = 2 * kMiB + 4;
    const uint64_t second = 4096 * 3;
    const uint64_t size = 64 + first + 60 + second + 100;
    const OutputId out = builder.add_output("archive.pt", size);
    const auto literal = [&](uint64_t at, uint64_t bytes) {
      builder.put_literal(out, at, std::string(bytes, '\0'));
    };
    literal(0, 64);
    builder.put(out, 64,
                TensorSource::stored({floats_, 0, first}, DType::float32,
                                     {static_cast<int64_t>(first / 4)}));
    literal(64 + first, 60);
    builder.put(
        out, 124 + first,
        TensorSource::stored({text_, 0, second}, DType::int16, {static_cast<int64_t>(second / 2)}));
    literal(124 + first + second, 100);
    builder.add_digest({out, 64, 64 + first, {10, size - 90}});
    builder.add_digest({out, 124 + first, 124 + first + second, {64 + first + 56, size - 4}});
  }

  std::vector<std::string> pack(unsigned threads, uint64_t unit, int level = kDefaultPackLevel,
                                std::vector<std::optional<Sha256Digest>> sha256 = {}) {
    GrowingSink sink(plan_.outputs().size());
    PackedOutput output(plan_, sink, level, std::move(sha256));
    Progress progress;
    execute(plan_, inputs_, output, progress, {.threads = threads, .unit_bytes = unit});
    EXPECT_TRUE(sink.all_finished());
    EXPECT_EQ(output.bytes_stored(), sink.bytes());
    return sink.outputs();
  }

  bool is_plain(size_t out) const {
    return plan_.outputs()[out].path == "config.json" || plan_.outputs()[out].path == "sub/latest";
  }

  TempFolder folder_;
  InputFiles inputs_;
  FileId floats_ = 0;
  FileId random_ = 0;
  FileId text_ = 0;
  CopyPlan plan_;
  std::vector<std::string> expected_;
};

TEST_F(PackedOutputTest, HoldsThePlansBytes) {
  const auto stored = pack(2, 256 << 10);
  for (size_t out = 0; out < stored.size(); ++out) {
    const std::string content = is_plain(out) ? stored[out] : content_of(stored[out]);
    EXPECT_TRUE(content == expected_[out]) << plan_.outputs()[out].path;
  }
  // Digests were patched in, not left zero.
  uint32_t crc = 0;
  std::memcpy(&crc, expected_[0].data() + 10, sizeof crc);
  EXPECT_NE(crc, 0u);
}

TEST_F(PackedOutputTest, IsTheSameOnAnyThreadsAndInAnyUnits) {
  const auto first = pack(1, 256 << 10);
  for (const unsigned threads : {1u, 2u, 8u}) {
    for (const uint64_t unit : {uint64_t{4096}, uint64_t{64 << 10}, kMiB, 2 * kMiB, 8 * kMiB}) {
      const auto again = pack(threads, unit);
      for (size_t out = 0; out < first.size(); ++out) {
        ASSERT_TRUE(again[out] == first[out])
            << plan_.outputs()[out].path << " " << threads << " " << unit;
      }
    }
  }
}

TEST_F(PackedOutputTest, IsSmallerWhereThatPays) {
  const auto stored = pack(2, kMiB);
  for (size_t out = 0; out < stored.size(); ++out) {
    const std::string& path = plan_.outputs()[out].path;
    if (path == "sub/zeros.pt") {
      EXPECT_LT(stored[out].size(), 2000u);
    }
    if (path == "archive.pt") {
      EXPECT_LT(stored[out].size(), expected_[out].size() * 27 / 32);
    }
  }
}

TEST_F(PackedOutputTest, StoresWhatIsPatchedBehindAllElse) {
  const auto stored = pack(2, kMiB);
  const auto bytes = as_byte_span(stored[0]);
  const auto place = PackedIndex::find(bytes.first(16), bytes.last(32), bytes.size());
  const auto index =
      PackedIndex::parse(bytes.subspan(place.offset, place.size), bytes.last(32), place);
  // Three short runs of bytes with digests in them, between the tensors.
  std::vector<uint64_t> patched;
  uint64_t end_of_others = 0;
  for (const PackedFrame& frame : index.frames) {
    if (std::set<uint32_t>{64, 60, 100}.contains(frame.content_size)) {
      patched.push_back(frame.offset);
    } else {
      end_of_others = std::max(end_of_others, frame.offset + frame.stored_size);
    }
  }
  ASSERT_EQ(patched.size(), 3u);
  EXPECT_EQ(patched[0], end_of_others);
  EXPECT_TRUE(std::is_sorted(patched.begin(), patched.end()));
}

TEST_F(PackedOutputTest, KeepsTheDigestsOfContents) {
  std::vector<std::optional<Sha256Digest>> sha256(3);
  sha256[1].emplace().fill(std::byte{5});
  const auto stored = pack(2, kMiB, kDefaultPackLevel, sha256);
  for (size_t out = 0; out < 3; ++out) {
    const test::StoredBytes file(stored[out]);
    EXPECT_EQ(PackedFile(file).sha256(), sha256[out]) << out;
  }
}

TEST_F(PackedOutputTest, UsesTheLevel) {
  const auto low = pack(2, kMiB, 1);
  const auto high = pack(2, kMiB, 15);
  const auto low_again = pack(2, kMiB, 1);
  EXPECT_TRUE(low == low_again);
  EXPECT_FALSE(low == high);
  EXPECT_TRUE(content_of(high[0]) == expected_[0]);
}

TEST(PackedOutputOfManyFiles, WritesEachByItself) {
  PlanBuilder builder;
  std::vector<std::string> contents;
  for (size_t i = 0; i < 500; ++i) {
    contents.push_back(test::make_content(test::kContents[i % 6], i * 13, i));
    const OutputId out = builder.add_output(std::to_string(i) + ".pt", contents.back().size());
    if (i > 0) builder.put_literal(out, 0, contents.back());
  }
  const CopyPlan plan = builder.finish();
  const InputFiles none;
  GrowingSink sink(500);
  PackedOutput output(plan, sink, kDefaultPackLevel);
  Progress progress;
  execute(plan, none, output, progress, {.threads = 8, .unit_bytes = 4096});
  for (size_t i = 0; i < 500; ++i) ASSERT_EQ(content_of(sink.outputs()[i]), contents[i]) << i;
}

// Staged: what StagedOutput does with files that are packed.

std::set<std::string> listing(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    names.insert(entry.path().lexically_relative(folder).string() +
                 (entry.is_directory() ? "/" : ""));
  }
  return names;
}

CopyPlan two_files(const std::string& text = "x.pt") {
  PlanBuilder builder;
  builder.put_literal(builder.add_output("sub/x.pt", text.size()), 0, text);
  builder.put_literal(builder.add_output("y.json", 6), 0, "y.json");
  return builder.finish();
}

void stage(const CopyPlan& plan, const fs::path& target, StageOptions options) {
  StagedOutput staged(plan, target, options);
  staged.prepare();
  const InputFiles none;
  Progress progress;
  if (options.packed) {
    PackedOutput output(plan, staged, kDefaultPackLevel);
    execute(plan, none, output, progress);
  } else {
    execute(plan, none, staged, progress);
  }
  staged.commit();
}

const std::set<std::string> kPacked{"sub/", "sub/x.pt.dspack", "y.json"};
const std::set<std::string> kPlain{"sub/", "sub/x.pt", "y.json"};

TEST(PackedStagedOutput, CallsPackedFilesWhatTheyAre) {
  for (const bool durable : {false, true}) {
    for (const bool whole : {false, true}) {
      const TempFolder folder;
      const fs::path target = folder.path() / "out";
      stage(two_files(), target, {.durable = durable, .whole_folder = whole, .packed = true});
      EXPECT_EQ(listing(target), kPacked);
      EXPECT_EQ(content_of(read_all(target / "sub/x.pt.dspack")), "x.pt");
      EXPECT_EQ(read_all(target / "y.json"), "y.json");
      EXPECT_EQ(listing(folder.path()).size(), 4u);
    }
  }
}

TEST(PackedStagedOutput, ReplacesOneFormByAnother) {
  const TempFolder folder;
  folder.write("theirs", "");
  std::set<std::string> packed = kPacked;
  std::set<std::string> plain = kPlain;
  packed.insert("theirs");
  plain.insert("theirs");
  const StageOptions pack{.force = true, .packed = true};
  const StageOptions leave{.force = true};
  stage(two_files("1"), folder.path(), leave);
  EXPECT_EQ(listing(folder.path()), plain);
  stage(two_files("2"), folder.path(), pack);
  EXPECT_EQ(listing(folder.path()), packed);
  EXPECT_EQ(content_of(read_all(folder.path() / "sub/x.pt.dspack")), "2");
  stage(two_files("3"), folder.path(), pack);
  EXPECT_EQ(listing(folder.path()), packed);
  EXPECT_EQ(content_of(read_all(folder.path() / "sub/x.pt.dspack")), "3");
  stage(two_files("4"), folder.path(), leave);
  EXPECT_EQ(listing(folder.path()), plain);
  EXPECT_EQ(read_all(folder.path() / "sub/x.pt"), "4");
  fs::rename(folder.path() / "sub/x.pt", folder.path() / "sub/x.pt.zst");
  stage(two_files("5"), folder.path(), pack);
  EXPECT_EQ(listing(folder.path()), packed);
}

TEST(PackedStagedOutput, ReplacesNoFormUnasked) {
  for (const char* there : {"sub/x.pt", "sub/x.pt.dspack", "sub/x.pt.zst", "y.json"}) {
    const TempFolder folder;
    fs::create_directory(folder.path() / "sub");
    folder.write(there, "theirs");
    const auto before = listing(folder.path());
    for (const bool packed : {false, true}) {
      EXPECT_ERROR(StagedOutput(two_files(), folder.path(), {.packed = packed}).prepare(),
                   UsageError, "exists already");
      EXPECT_EQ(listing(folder.path()), before);
      EXPECT_EQ(read_all(folder.path() / there), "theirs");
    }
  }
}

TEST(PackedStagedOutput, LeavesAFormAloneThatAppearsBeforeTheCommit) {
  for (const char* theirs : {"sub/x.pt", "sub/x.pt.dspack", "sub/x.pt.zst", "y.json.dspack"}) {
    const TempFolder folder;
    fs::create_directory(folder.path() / "sub");
    {
      const CopyPlan plan = two_files();
      StagedOutput staged(plan, folder.path(), {.packed = true});
      staged.prepare();
      PackedOutput output(plan, staged, kDefaultPackLevel);
      const InputFiles none;
      Progress progress;
      execute(plan, none, output, progress);
      folder.write(theirs, "theirs");
      EXPECT_ERROR(staged.commit(), UsageError, "exists already");
    }
    EXPECT_EQ(listing(folder.path()), (std::set<std::string>{"sub/", theirs}));
    EXPECT_EQ(read_all(folder.path() / theirs), "theirs");
  }
}

// A failure in the middle leaves no old index over new files.
TEST(PackedStagedOutput, PutsTheOldLastFileBackInWhateverForm) {
  PlanBuilder builder;
  for (const char* name : {"a.json", "z.pt"}) {
    builder.put_literal(builder.add_output(name, 1), 0, "n");
  }
  const CopyPlan plan = builder.finish();
  for (const char* last : {"z.pt", "z.pt.dspack", "z.pt.zst"}) {
    const TempFolder folder;
    folder.write(last, "old");
    StagedOutput staged(plan, folder.path(), {.force = true, .packed = true});
    staged.prepare();
    PackedOutput output(plan, staged, kDefaultPackLevel);
    const InputFiles none;
    Progress progress;
    execute(plan, none, output, progress);
    fs::create_directory(folder.path() / "a.json");  // the commit stops here
    EXPECT_ERROR(staged.commit(), IoError, "cannot move into place");
    EXPECT_EQ(read_all(folder.path() / last), "old") << last;
    EXPECT_TRUE(fs::is_directory(folder.path() / "a.json"));
  }
}

// Fails at one of its writes.
class FailingSink : public Sink {
 public:
  FailingSink(Sink& target, int good) : target_(target), good_(good) {}
  void write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) override {
    if (good_-- == 0) throw IoError({.file = "disk"}, "cannot write", ENOSPC);
    target_.write_at(out, offset, bytes);
  }
  void finish(OutputId out) override { target_.finish(out); }

 private:
  Sink& target_;
  std::atomic<int> good_;
};

TEST_F(PackedOutputTest, LeavesNothingIfTheDiskFails) {
  int good = 0;
  for (bool failed = true; failed; good += 5) {
    const TempFolder folder;
    folder.write("theirs", "");
    {
      StagedOutput staged(plan_, folder.path(), {.packed = true});
      staged.prepare();
      FailingSink failing(staged, good);
      PackedOutput output(plan_, failing, kDefaultPackLevel);
      Progress progress;
      try {
        execute(plan_, inputs_, output, progress, {.threads = 3, .unit_bytes = kMiB});
        failed = false;
      } catch (const IoError& error) {
        EXPECT_EQ(error.where().file, "disk");
      }
    }
    EXPECT_EQ(listing(folder.path()), std::set<std::string>{"theirs"});
  }
  EXPECT_GT(good, 30);
}

TEST_F(PackedOutputTest, StopsWhereItIsCancelled) {
  GrowingSink sink(plan_.outputs().size());
  PackedOutput output(plan_, sink, kDefaultPackLevel);
  Progress progress;
  progress.cancelled = true;
  EXPECT_ERROR(execute(plan_, inputs_, output, progress), InterruptedError, "interrupted");
}

}  // namespace
}  // namespace dsckpt
