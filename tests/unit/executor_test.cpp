#include "exec/executor.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/kernels.h"
#include "dsckpt/error.h"
#include "format/read_tensor.h"
#include "support/expect_error.h"
#include "support/plan_runner.h"
#include "support/plan_tools.h"
#include "support/portion_runner.h"
#include "support/random_inputs.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

using enum DType;
using test::flat;
using test::MemorySink;
using test::random_bytes;

using test::kMiB;
constexpr unsigned kThreadCounts[] = {1, 2, 8};
struct Variant {
  unsigned threads;
  uint64_t unit_bytes;
};
constexpr Variant kRuns[] = {{1, kMiB / 4}, {2, kMiB / 4}, {8, kMiB / 4}, {3, 4 * kMiB}, {2, 4096}};

uint32_t zlib_crc(std::string_view bytes) {
  return static_cast<uint32_t>(
      ::crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())));
}

class ExecutorTest : public testing::Test {
 protected:
  ExecutorTest() {
    for (size_t i = 0; i < 3; ++i) {
      contents_.push_back(random_bytes(5 * kMiB + 13 * i, i));
      inputs_.add(folder_.write(std::to_string(i) + ".pt", contents_.back()));
    }
  }

  // The outputs of `plan`, the same for any number of threads and any size of units.
  std::vector<std::string> outputs_of(const CopyPlan& plan, const ExecOptions& options = {}) {
    plan.validate(test::planned(inputs_));
    std::vector<std::string> first;
    for (const auto& [threads, unit_bytes] : kRuns) {
      MemorySink sink(plan);
      Progress progress;
      ExecOptions varied = options;
      varied.threads = threads;
      varied.unit_bytes = unit_bytes;
      stats_ = execute(plan, inputs_, sink, progress, varied);
      EXPECT_TRUE(sink.all_finished());
      // Bytes that are read only for a check count as well.
      EXPECT_EQ(progress.bytes_done, progress.bytes_total);
      EXPECT_GE(progress.bytes_total, plan.bytes_written());
      if (options.records.empty()) {
        EXPECT_EQ(progress.bytes_total, plan.bytes_written());
      }
      EXPECT_EQ(stats_.bytes_written, plan.bytes_written());
      if (first.empty()) first = sink.outputs();
      EXPECT_TRUE(first == sink.outputs()) << threads << " threads, units of " << unit_bytes;
      for (const int ranks : {1, 3}) {
        EXPECT_TRUE(first == test::run_in_portions(plan, inputs_, varied, ranks, unit_bytes))
            << ranks << " ranks, units of " << unit_bytes;
      }
    }
    return first;
  }

  // One output that is `source` behind `prefix`.
  CopyPlan plan_of(const TensorSource& source, std::string_view prefix = "") {
    PlanBuilder builder;
    builder.add_output("out", prefix.size() + source.nbytes());
    builder.put_literal(0, 0, prefix);
    builder.put(0, prefix.size(), source);
    return builder.finish();
  }

  void expect_like_naive(const CopyPlan& plan) {
    EXPECT_TRUE(outputs_of(plan) == test::run_plan(plan, inputs_));
  }

  // The flat tensor `from` of file 0 at `offset`, cast to `to` behind `prefix`.
  void expect_cast(DType from, DType to, uint64_t offset, size_t count, std::string_view prefix) {
    SCOPED_TRACE(std::string(torch_name(from)) + " to " + std::string(torch_name(to)));
    std::string expected(prefix);
    expected.resize(prefix.size() + count * size_of(to));
    convert(from, to, as_byte_span(contents_[0]).data() + offset,
            reinterpret_cast<std::byte*>(expected.data() + prefix.size()), count);
    EXPECT_TRUE(outputs_of(plan_of(flat(0, offset, from, count).to(to), prefix)).at(0) == expected);
  }

  test::TempFolder folder_;
  std::vector<std::string> contents_;
  InputFiles inputs_;
  RunStats stats_;
};

TEST_F(ExecutorTest, CopiesPiecesOfManyFilesLargeAndSmall) {
  PlanBuilder builder;
  builder.add_output("a", 0);
  std::vector<TensorSource> parts;
  for (uint64_t i = 0; i < 500; ++i) {
    parts.push_back(flat(static_cast<FileId>(i % 3), i * 7919 % kMiB, uint8, 1 + i * i % 30'011));
  }
  const TensorSource all = TensorSource::cat(0, parts);
  const OutputId big = builder.add_output("b/c", all.nbytes() + 5);
  builder.put_literal(big, 0, "12345");
  builder.put(big, 5, all);
  expect_like_naive(builder.finish());
  EXPECT_EQ(stats_.bytes_read, all.nbytes());
}

TEST_F(ExecutorTest, CopiesOutputsOfEverySizeAroundAUnit) {
  PlanBuilder builder;
  for (const uint64_t size :
       {uint64_t{1}, kMiB - 1, kMiB, kMiB + 1, 2 * kMiB - 1, 2 * kMiB, 2 * kMiB + 1, 5 * kMiB}) {
    const OutputId out = builder.add_output(std::to_string(size), size);
    builder.put(out, 0, flat(0, 0, uint8, size));
  }
  expect_like_naive(builder.finish());
}

TEST_F(ExecutorTest, CutsUnitsBetweenElementsWhereverTheOutputBegins) {
  const auto source = flat(1, 3, float64, 600'000);
  for (const std::string_view prefix : {"", "1", "1234567"}) {
    expect_like_naive(plan_of(source, prefix));
  }
  // An element that straddles the end of the first unit starts the next one.
  expect_like_naive(plan_of(flat(1, 0, complex128, 10), std::string(kMiB - 15, 'x')));
  expect_like_naive(plan_of(flat(1, 0, complex128, 10), std::string(kMiB, 'x')));
}

TEST_F(ExecutorTest, GathersDenseRows) {
  // Every third float of a row of 30, from 10,000 rows; odd rows of 7 bytes, 9 apart.
  expect_like_naive(
      plan_of(TensorSource::stored({0, 5, 1'200'000}, float32, {10'000, 10}, {30, 3}), "abc"));
  expect_like_naive(
      plan_of(TensorSource::stored({0, 1, 5 * kMiB - 1}, uint8, {400'000, 7}, {9, 1}), "abc"));
}

TEST_F(ExecutorTest, GathersSparseRows) {
  expect_like_naive(
      plan_of(TensorSource::stored({0, 0, 5 * kMiB}, uint8, {500, 4000}, {10'000, 1}), "abc"));
  expect_like_naive(
      plan_of(TensorSource::stored({0, 0, 5 * kMiB}, uint8, {40, 100'001}, {130'003, 1}), "abc"));
  expect_like_naive(
      plan_of(TensorSource::stored({0, 0, 5 * kMiB}, bfloat16, {60, 9}, {40'000, 2})));
}

TEST_F(ExecutorTest, GathersRowsOfExactlyTheDenseLimit) {
  for (const int64_t stride : {4095, 4096, 4097}) {
    for (const int64_t row : {1, 4095, 4096}) {
      expect_like_naive(
          plan_of(TensorSource::stored({0, 0, 5 * kMiB}, uint8, {1000, row}, {stride, 1}), "abc"));
    }
  }
}

TEST_F(ExecutorTest, GathersTransposedExpandedAndOverlappingRows) {
  expect_like_naive(plan_of(TensorSource::stored({0, 0, 240'000}, float32, {200, 300}, {1, 200})));
  expect_like_naive(plan_of(TensorSource::stored({0, 9, 4}, float32, {700'000}, {0}), "abc"));
  expect_like_naive(
      plan_of(TensorSource::stored({0, 9, 4000}, float32, {3000, 700}, {0, 1}), "abc"));
  expect_like_naive(
      plan_of(TensorSource::stored({0, 9, 50'000}, uint8, {40'000, 50}, {1, 1}), "abc"));
}

TEST_F(ExecutorTest, CastsAcrossUnitsOfAnyAlignment) {
  expect_cast(bfloat16, float32, 2, 1'300'001, "abc");
  expect_cast(float16, float32, 1, 700'000, "");
  expect_cast(float32, bfloat16, 3, 1'300'001, "a");
  expect_cast(float32, float16, 4, 1'000'003, "abc");
  expect_cast(float64, bfloat16, 0, 600'000, "abc");
  expect_cast(float64, float32, 0, 600'000, "abcde");
  expect_cast(float8_e4m3fn, float32, 0, 1'100'000, "abc");
  expect_cast(float16, bfloat16, 0, 1'100'000, "abc");
}

TEST_F(ExecutorTest, WidensBfloat16ByAppendingZeros) {
  const size_t count = 700'000;
  std::string expected = "abc";
  for (size_t i = 0; i < count; ++i) {
    expected += {'\0', '\0', contents_[0][2 * i], contents_[0][2 * i + 1]};
  }
  EXPECT_TRUE(outputs_of(plan_of(flat(0, 0, bfloat16, count).to(float32), "abc")).at(0) ==
              expected);
}

TEST_F(ExecutorTest, CastsRowsAsItCopiesThem) {
  for (const auto& [rows, columns, stride] : std::vector<std::array<int64_t, 3>>{
           {30'000, 40, 80}, {300, 3000, 5000}, {2000, 700, 0}, {70'001, 1, 35}}) {
    const TensorSource source =
        TensorSource::stored({0, 1, 5 * kMiB - 1}, bfloat16, {rows, columns}, {stride, 1});
    const std::string copied = test::run_plan(plan_of(source), inputs_).at(0);
    std::string expected(copied.size() * 2, '\0');
    convert(bfloat16, float32, as_byte_span(copied).data(),
            reinterpret_cast<std::byte*>(expected.data()), copied.size() / 2);
    EXPECT_TRUE(outputs_of(plan_of(source.to(float32))).at(0) == expected);
  }
}

TEST_F(ExecutorTest, WritesLiteralsLongerThanAUnit) {
  const std::string text = random_bytes(3 * kMiB + 7, 9);
  PlanBuilder builder;
  builder.add_output("out", text.size() + 2);
  builder.put_literal(0, 0, "ab");
  builder.put_literal(0, 2, text);
  EXPECT_TRUE(outputs_of(builder.finish()).at(0) == "ab" + text);
}

TEST_F(ExecutorTest, WritesZerosLongerThanAUnitBetweenOtherBytes) {
  const auto zeros = TensorSource::zeros(float64, {300'001});
  const auto source = TensorSource::cat(0, {flat(0, 1, float64, 7), zeros, flat(1, 3, float64, 9)});
  const CopyPlan plan = plan_of(source, "12345");
  const std::string expected = "12345" + contents_[0].substr(1, 56) +
                               std::string(8 * 300'001, '\0') + contents_[1].substr(3, 72);
  EXPECT_TRUE(outputs_of(plan).at(0) == expected);
  EXPECT_EQ(stats_.bytes_read, 128u);
  std::string read(expected.size() - 5, 'x');
  read_elements(inputs_, source, 0, source.numel(), std::as_writable_bytes(std::span(read)));
  EXPECT_TRUE(read == expected.substr(5));
}

TEST_F(ExecutorTest, HoldsOneUnitOfZerosAtATime) {
  struct LargestWrite : Sink {
    void write_at(OutputId, uint64_t, std::span<const std::byte> bytes) override {
      largest = std::max(largest, bytes.size());
      total += bytes.size();
    }
    void finish(OutputId) override {}
    size_t largest = 0;
    uint64_t total = 0;
  } sink;
  const CopyPlan plan = plan_of(TensorSource::zeros(uint8, {300 * kMiB}));
  Progress progress;
  ExecOptions options;
  options.threads = 1;
  execute(plan, inputs_, sink, progress, options);
  EXPECT_LE(sink.largest, kMiB);
  EXPECT_EQ(sink.total, 300 * kMiB);
}

// A sink needs both for direct writes.
TEST_F(ExecutorTest, CutsLargeOutputsAtMultiplesOfTheUnitInMemoryThatLiesAlike) {
  struct PlacesInMemory : Sink {
    void write_at(OutputId, uint64_t offset, std::span<const std::byte> bytes) override {
      offsets.push_back(offset);
      const auto address = reinterpret_cast<uintptr_t>(bytes.data());
      EXPECT_EQ(address % 4096, offset % 4096);
    }
    void finish(OutputId) override {}
    std::vector<uint64_t> offsets;
  };
  ExecOptions options;
  options.threads = 1;
  options.unit_bytes = kMiB;
  const auto offsets_behind = [&](std::string_view prefix) {
    const CopyPlan plan = plan_of(flat(0, 0, float32, kMiB), prefix);
    PlacesInMemory sink;
    Progress progress;
    execute(plan, inputs_, sink, progress, options);
    return sink.offsets;
  };
  EXPECT_EQ(offsets_behind("12345678"),
            (std::vector<uint64_t>{0, kMiB, 2 * kMiB, 3 * kMiB, 4 * kMiB}));
  // An element of 4 bytes begins 3 bytes before every multiple.
  EXPECT_EQ(offsets_behind("1"),
            (std::vector<uint64_t>{0, kMiB - 3, 2 * kMiB - 3, 3 * kMiB - 3, 4 * kMiB - 3}));
}

TEST_F(ExecutorTest, FinishesEmptyOutputsAndRunsAnEmptyPlan) {
  PlanBuilder builder;
  EXPECT_TRUE(outputs_of(builder.finish()).empty());
  builder.add_output("a", 0);
  builder.add_output("b", 1);
  builder.add_output("c", 0);
  builder.put_literal(1, 0, "x");
  builder.add_digest({0, 0, 0, {}});
  EXPECT_EQ(outputs_of(builder.finish()), (std::vector<std::string>{"", "x", ""}));
}

// An output made as a zip is: records, each with its CRC32 behind it and once more at the end.
class ExecutorDigests : public ExecutorTest {
 protected:
  CopyPlan plan_with(const std::vector<std::vector<TensorSource>>& records) {
    const std::string_view zeros("\0\0\0\0", 4);
    PlanBuilder builder;
    uint64_t size = 0;
    for (const auto& parts : records) {
      for (const TensorSource& part : parts) size += part.nbytes();
      size += 3 + 4;
    }
    const uint64_t directory = size;
    size += records.size() * 4;
    builder.add_output("first", 1);
    builder.put_literal(0, 0, "1");
    const OutputId out = builder.add_output("out", size);
    uint64_t at = 0;
    for (size_t i = 0; i < records.size(); ++i) {
      builder.put_literal(out, at, "hdr");
      const uint64_t begin = at += 3;
      for (const TensorSource& part : records[i]) {
        builder.put(out, at, part);
        at += part.nbytes();
      }
      builder.put_literal(out, at, zeros);
      builder.put_literal(out, directory + 4 * i, zeros);
      builder.add_digest({out, begin, at, {at, directory + 4 * i}});
      ranges_.push_back({begin, at});
      at += 4;
    }
    return builder.finish();
  }
  std::vector<std::pair<uint64_t, uint64_t>> ranges_;
};

TEST_F(ExecutorDigests, AreZlibsOfRecordsLongShortAndEmpty) {
  std::vector<std::vector<TensorSource>> records;
  for (const uint64_t size : {0u, 1u, 3'000'000u, 0u, 5u, 1'048'569u, 1'048'576u, 0u}) {
    records.push_back({flat(0, 17, uint8, size)});
  }
  const CopyPlan plan = plan_with(records);
  expect_like_naive(plan);
  const std::string out = outputs_of(plan).at(1);
  for (const auto& [begin, end] : ranges_) {
    EXPECT_EQ(load_le<uint32_t>(as_byte_span(out).data() + end),
              zlib_crc(std::string_view(out).substr(begin, end - begin)));
  }
}

TEST_F(ExecutorDigests, CoverManyPiecesRowsAndCasts) {
  const auto rows = TensorSource::stored({1, 0, 5 * kMiB}, uint8, {3000, 500}, {1001, 1});
  const CopyPlan plan =
      plan_with({{flat(0, 3, uint8, 1'500'000), flat(2, 0, uint8, 10), rows},
                 {flat(1, 1, bfloat16, 700'001).to(float32), flat(1, 0, float32, 9)},
                 {TensorSource::zeros(uint8, {1'234'567}), flat(0, 0, uint8, 1)}});
  const std::string out = outputs_of(plan).at(1);
  for (const auto& [begin, end] : ranges_) {
    EXPECT_EQ(load_le<uint32_t>(as_byte_span(out).data() + end),
              zlib_crc(std::string_view(out).substr(begin, end - begin)));
  }
  EXPECT_EQ(out.substr(out.size() - 12, 4), out.substr(ranges_[0].second, 4));
  EXPECT_EQ(out.substr(out.size() - 4), out.substr(ranges_[2].second, 4));
}

TEST_F(ExecutorDigests, AreRightForAnEmptyRangeAtTheStartOfAnother) {
  const std::string_view zeros("\0\0\0\0", 4);
  for (const bool empty_first : {true, false}) {
    PlanBuilder builder;
    builder.add_output("out", 3 * kMiB + 8);
    builder.put(0, 0, flat(0, 0, uint8, 3 * kMiB));
    builder.put_literal(0, 3 * kMiB, zeros);
    builder.put_literal(0, 3 * kMiB + 4, zeros);
    const Digest empty{0, 0, 0, {3 * kMiB}};
    const Digest full{0, 0, 3 * kMiB, {3 * kMiB + 4}};
    builder.add_digest(empty_first ? empty : full);
    builder.add_digest(empty_first ? full : empty);
    expect_like_naive(builder.finish());
  }
}

class ExecutorRecords : public ExecutorTest {
 protected:
  InputRecord record(FileId file, uint64_t offset, uint64_t size) const {
    return {{file, offset, size},
            zlib_crc(std::string_view(contents_[file]).substr(offset, size)),
            "data/" + std::to_string(offset)};
  }
};

TEST_F(ExecutorRecords, AreCheckedWhileTheyAreCopiedAndCast) {
  PlanBuilder builder;
  builder.add_output("out", 3 * kMiB + 4 * kMiB);
  builder.put(0, 0, flat(0, 100, uint8, 3 * kMiB));
  builder.put(0, 3 * kMiB, flat(1, 1, bfloat16, kMiB).to(float32));
  const CopyPlan plan = builder.finish();
  ExecOptions options;
  options.records = {record(0, 100, 3 * kMiB), record(1, 1, 2 * kMiB), record(2, 0, 1000)};
  outputs_of(plan, options);
  EXPECT_EQ(stats_.records_checked, 2u);
  EXPECT_EQ(stats_.bytes_read, 5 * kMiB);
  options.check_all_records = true;
  outputs_of(plan, options);
  EXPECT_EQ(stats_.records_checked, 3u);
  EXPECT_EQ(stats_.bytes_read, 5 * kMiB + 1000);

  for (size_t wrong = 0; wrong < 3; ++wrong) {
    ExecOptions bad = options;
    bad.records[wrong].crc32 ^= 0x10;
    EXPECT_ERROR(outputs_of(plan, bad), CorruptError, bad.records[wrong].name);
  }
}

TEST_F(ExecutorRecords, AreCheckedByAReadOfTheirOwnWhenTheyAreReadInRows) {
  const CopyPlan plan =
      plan_of(TensorSource::stored({0, 7, 4'000'000}, float32, {1000, 1000}, {1, 1000}));
  ExecOptions options;
  options.records = {record(0, 7, 4'000'000)};
  outputs_of(plan, options);
  EXPECT_EQ(stats_.records_checked, 1u);
  EXPECT_EQ(stats_.bytes_read, 8'000'000u);
  options.records[0].crc32 ^= 1;
  EXPECT_ERROR(outputs_of(plan, options), CorruptError, "data/7");
}

class ExecutorCombined : public ExecutorTest {
 protected:
  // `count` float32 elements with these bits in a file of their own, behind `before` bytes.
  TensorSource filled(uint32_t bits, uint64_t count, uint64_t before = 0) {
    std::string bytes(before, '\xee');
    for (uint64_t i = 0; i < count; ++i) append_le(bytes, bits);
    return flat(add(bytes), before, float32, count);
  }

  FileId add(const std::string& bytes) {
    return inputs_.add(folder_.write("more" + std::to_string(inputs_.size()), bytes));
  }

  // Finite float32 elements.
  static std::string numbers(size_t count, uint64_t seed) {
    std::string bytes = random_bytes(4 * count, seed);
    for (size_t i = 3; i < bytes.size(); i += 4) bytes[i] = static_cast<char>(bytes[i] & 0xbf);
    return bytes;
  }
};

TEST_F(ExecutorCombined, MeansAreTorchs) {
  struct Case {
    std::vector<uint32_t> parts;
    uint32_t mean;
    uint16_t as_bfloat16;
    uint16_t as_float16;
  };
  // Made with torch 2.13 on x86-64: parts = [torch.tensor([bits], dtype=torch.int32)
  // .view(torch.float32) for bits in ...]; mean = sum(parts) / len(parts), its bits, and those of
  // mean.to(torch.bfloat16) and mean.to(torch.float16). Casts promise no more than a NaN for a NaN.
  const std::vector<Case> cases = {
      {{0x80000000}, 0x0, 0x0, 0x0},
      {{0x3f800001}, 0x3f800001, 0x3f80, 0x3c00},
      {{0x7f800000}, 0x7f800000, 0x7f80, 0x7c00},
      {{0xff800123}, 0xffc00123, 0xffff, 0xfe00},
      {{0x80000000, 0x80000000, 0x80000000}, 0x0, 0x0, 0x0},
      {{0x3f800000, 0x40000000, 0x40800001}, 0x40155556, 0x4015, 0x40ab},
      {{0x3fa04f89, 0x00000000, 0x00000000}, 0x3ed5bf61, 0x3ed6, 0x36ae},
      {{0x3dcccccd, 0x3e4ccccd, 0x3e99999a}, 0x3e4ccccd, 0x3e4d, 0x3266},
      {{0x4b800000, 0x3f800000, 0xcb800000}, 0x0, 0x0, 0x0},
      {{0x4b800000, 0xcb800000, 0x3f800000}, 0x3eaaaaab, 0x3eab, 0x3555},
      {{0x7f7fffff, 0x7f7fffff, 0xff7fffff}, 0x7f800000, 0x7f80, 0x7c00},
      {{0x7f800000, 0x3f800000, 0x3f800000}, 0x7f800000, 0x7f80, 0x7c00},
      {{0x7f800000, 0xff800000, 0x3f800000}, 0xffc00000, 0xffff, 0xfe00},
      {{0x3f800000, 0x7fc01234, 0x3f800000}, 0x7fc01234, 0xffff, 0x7e00},
      {{0x00000001, 0x00000001, 0x00000002}, 0x1, 0x0, 0x0},
      {{0x00000001, 0x00000001, 0x00000000}, 0x1, 0x0, 0x0},
      {{0x3f800000, 0x3f810000, 0x3f830000}, 0x3f815555, 0x3f81, 0x3c0b},
      {{0x3f800000, 0x40000000, 0x40400000, 0x40a00001, 0xbf800003}, 0x40000000, 0x4000, 0x4000},
  };
  // Longer than a chunk and no multiple of a vector, at odd places.
  constexpr uint64_t kCount = 33'003;
  for (const Case& one : cases) {
    SCOPED_TRACE(testing::PrintToString(one.parts));
    std::vector<TensorSource> parts;
    for (const uint32_t bits : one.parts) parts.push_back(filled(bits, kCount, parts.size()));
    const TensorSource mean = TensorSource::mean(parts);
    std::string expected = "abc";
    std::string expected_bfloat16 = "abc";
    std::string expected_float16 = "abc";
    for (uint64_t i = 0; i < kCount; ++i) {
      append_le(expected, one.mean);
      append_le(expected_bfloat16, one.as_bfloat16);
      append_le(expected_float16, one.as_float16);
    }
    EXPECT_TRUE(outputs_of(plan_of(mean, "abc")).at(0) == expected);
    EXPECT_EQ(stats_.bytes_read, parts.size() * kCount * 4);
    if (std::isnan(std::bit_cast<float>(one.mean))) continue;
    EXPECT_TRUE(outputs_of(plan_of(mean.to(bfloat16), "abc")).at(0) == expected_bfloat16);
    EXPECT_TRUE(outputs_of(plan_of(mean.to(float16), "abc")).at(0) == expected_float16);
  }
}

// As float64 adds them, rounded once: 1 + 2^-24 + 2^-24 is more than 1 in float32, too.
TEST_F(ExecutorCombined, SumsAreRoundedOnce) {
  struct Case {
    std::vector<uint32_t> parts;
    uint32_t sum;
  };
  const std::vector<Case> cases = {
      {{0x3f800000}, 0x3f800000},
      {{0x3f800000, 0x40000000, 0x40400000}, 0x40c00000},
      {{0x3f800000, 0x33800000, 0x33800000}, 0x3f800001},
      {{0x00000001, 0x00000001, 0x00000002}, 0x4},
      {{0x3dcccccd, 0xbdcccccd}, 0x0},
      {std::vector<uint32_t>(10, 0x3f800000), 0x41200000},
  };
  constexpr uint64_t kCount = 33'003;
  for (const Case& one : cases) {
    SCOPED_TRACE(testing::PrintToString(one.parts));
    std::vector<TensorSource> parts;
    for (const uint32_t bits : one.parts) parts.push_back(filled(bits, kCount, parts.size()));
    std::string expected = "abc";
    for (uint64_t i = 0; i < kCount; ++i) append_le(expected, one.sum);
    EXPECT_TRUE(outputs_of(plan_of(TensorSource::sum(parts), "abc")).at(0) == expected);
  }
  EXPECT_ERROR(TensorSource::sum({}), InconsistentError, "0 tensors");
}

TEST_F(ExecutorCombined, MeansOfPartsCutDifferently) {
  const FileId a = add(numbers(1'200'000, 1));
  const FileId b = add(numbers(1'200'000, 2));
  const TensorSource rows =
      TensorSource::stored({a, 8, 4 * 899'800}, float32, {900, 800}, {1000, 1});
  const TensorSource whole = flat(b, 4, float32, 720'000).view({900, 800});
  const TensorSource cut =
      TensorSource::cat(1, {flat(b, 400'000, float32, 450'000).view({900, 500}),
                            flat(a, 0, float32, 270'000).view({900, 300})});
  const TensorSource mean = TensorSource::mean({rows, whole, cut});
  expect_like_naive(plan_of(mean, "abc"));
  EXPECT_EQ(stats_.bytes_read, 3u * 4 * 720'000);

  const std::string naive = test::run_plan(plan_of(mean), inputs_).at(0);
  std::string expected(naive.size() / 2, '\0');
  convert(float32, bfloat16, as_byte_span(naive).data(),
          reinterpret_cast<std::byte*>(expected.data()), naive.size() / 4);
  EXPECT_TRUE(outputs_of(plan_of(mean.to(bfloat16))).at(0) == expected);
}

TEST_F(ExecutorCombined, SameTensorsAreTheFirstOfThem) {
  // NaNs, infinities and negative zeros among the random bytes are bytes like others.
  const FileId copy = add("x" + contents_[0]);
  const TensorSource first = flat(0, 1000, float32, 500'001);
  const TensorSource same = TensorSource::same(
      {first, flat(copy, 1001, float32, 500'001),
       TensorSource::cat(0, {flat(0, 1000, float32, 3), flat(copy, 1013, float32, 499'998)})},
      "both");
  EXPECT_TRUE(outputs_of(plan_of(same, "abc")).at(0) ==
              "abc" + contents_[0].substr(1000, 4 * 500'001));
  EXPECT_EQ(stats_.bytes_read, 3u * 4 * 500'001);
  // A comparison nested in another is one comparison with all sources.
  const TensorSource nested = TensorSource::same({flat(copy, 1001, float32, 500'001), same}, "all");
  EXPECT_TRUE(outputs_of(plan_of(nested)).at(0) == contents_[0].substr(1000, 4 * 500'001));
  EXPECT_EQ(stats_.bytes_read, 4u * 4 * 500'001);
  EXPECT_TRUE(outputs_of(plan_of(same.to(bfloat16), "abc")) ==
              outputs_of(plan_of(first.to(bfloat16), "abc")));
  EXPECT_TRUE(outputs_of(plan_of(same.to(float16).narrow(0, 9, 300'000))) ==
              outputs_of(plan_of(first.to(float16).narrow(0, 9, 300'000))));
}

TEST_F(ExecutorCombined, ReadElementsGivesWhatIsExecuted) {
  const FileId a = add(numbers(100'000, 5));
  const FileId b = add(numbers(100'000, 6));
  const FileId copy = add("x" + contents_[0]);
  const auto read = [&](const TensorSource& source) {
    std::string bytes(source.nbytes(), '\0');
    read_elements(inputs_, source, 0, source.numel(),
                  std::as_writable_bytes(std::span(bytes.data(), bytes.size())));
    return bytes;
  };
  const TensorSource mean = TensorSource::mean(
      {flat(a, 4, float32, 90'000), flat(b, 8, float32, 90'000), flat(b, 40, float32, 90'000)});
  const TensorSource same =
      TensorSource::same({flat(0, 9, uint8, 200'000), flat(copy, 10, uint8, 200'000)}, "both");
  for (const TensorSource& source : {mean, same, mean.narrow(0, 70'001, 3)}) {
    EXPECT_TRUE(read(source) == outputs_of(plan_of(source)).at(0));
  }
  const TensorSource bad = TensorSource::same(
      {flat(0, 9, uint8, 200'000),
       TensorSource::cat(0, {flat(copy, 10, uint8, 150'000), flat(copy, 3, uint8, 50'000)})},
      "both");
  EXPECT_ERROR(read(bad), InconsistentError, inputs_[copy].display() + ": at 3: both are not");
}

TEST_F(ExecutorCombined, SameTensorsThatDifferAreNamed) {
  constexpr uint64_t kCount = 5 * kMiB - 10;
  for (const uint64_t at :
       {uint64_t{0}, uint64_t{1}, kMiB / 8 - 1, kMiB / 8, 3 * kMiB + 77, kCount - 1}) {
    std::string changed = contents_[0];
    changed[10 + at] = static_cast<char>(changed[10 + at] ^ 4);
    const FileId good = add(contents_[0]);
    const FileId bad = add("12" + changed);
    const std::string expected =
        inputs_[bad].display() + ": at " + std::to_string(12 + at) +
        ": 'embed.weight' on tensor-parallel ranks 0, 1 and 2 are not the same";
    const TensorSource same =
        TensorSource::same({flat(0, 10, float8_e5m2, kCount), flat(good, 10, float8_e5m2, kCount),
                            flat(bad, 12, float8_e5m2, kCount)},
                           "'embed.weight' on tensor-parallel ranks 0, 1 and 2");
    for (const unsigned threads : kThreadCounts) {
      for (const TensorSource& source : {same, same.to(float32)}) {
        const CopyPlan plan = plan_of(source, "abc");
        plan.validate(test::planned(inputs_));
        MemorySink sink(plan);
        Progress progress;
        EXPECT_ERROR(execute(plan, inputs_, sink, progress, {.threads = threads}),
                     InconsistentError, expected);
      }
    }
  }
}

TEST_F(ExecutorCombined, SameTensorsAreComparedBitByBit) {
  // NaNs of other bits, the two zeros, and values that a cast to bfloat16 makes equal.
  for (const auto& [a, b] : std::vector<std::pair<uint32_t, uint32_t>>{
           {0x7fc00000, 0x7fc00001}, {0x80000000, 0}, {0x3f800000, 0x3f800001}}) {
    const TensorSource same = TensorSource::same({filled(a, 100), filled(b, 100, 7)}, "they");
    const TensorSource equal = TensorSource::same({filled(a, 100), filled(a, 100, 7)}, "they");
    for (const DType dtype : {float32, bfloat16}) {
      EXPECT_ERROR(outputs_of(plan_of(same.to(dtype))), InconsistentError, "they are not the same");
      EXPECT_NO_THROW(outputs_of(plan_of(equal.to(dtype))));
    }
  }
}

TEST_F(ExecutorCombined, RecordsOfOperandsAreChecked) {
  const std::string copy = "x" + contents_[0].substr(0, 3 * kMiB);
  const FileId other = add(copy);
  const FileId first_number = add(numbers(kMiB / 2, 3));
  const FileId second_number = add(numbers(kMiB / 2, 4));
  const auto record = [&](FileId file, uint64_t offset, uint64_t size) {
    const auto bytes = inputs_[file].read(offset, size);
    return InputRecord{{file, offset, size},
                       zlib_crc({reinterpret_cast<const char*>(bytes.data()), bytes.size()}),
                       "data/" + std::to_string(file)};
  };
  PlanBuilder builder;
  builder.add_output("out", 5 * kMiB);
  builder.put(
      0, 0,
      TensorSource::same({flat(0, 0, uint8, 3 * kMiB), flat(other, 1, uint8, 3 * kMiB)}, "it"));
  builder.put(0, 3 * kMiB,
              TensorSource::mean({flat(first_number, 0, float32, kMiB / 2),
                                  flat(second_number, 0, float32, kMiB / 2)}));
  const CopyPlan plan = builder.finish();
  ExecOptions options;
  options.records = {record(0, 0, 3 * kMiB), record(other, 1, 3 * kMiB),
                     record(first_number, 0, 2 * kMiB), record(second_number, 0, 2 * kMiB)};
  outputs_of(plan, options);
  EXPECT_EQ(stats_.records_checked, 4u);
  // The first of what is the same is checked as it is copied.
  EXPECT_EQ(stats_.bytes_read, plan.bytes_read() + (3 + 2 + 2) * kMiB);
  for (size_t wrong = 0; wrong < options.records.size(); ++wrong) {
    ExecOptions bad = options;
    bad.records[wrong].crc32 ^= 0x10;
    EXPECT_ERROR(outputs_of(plan, bad), CorruptError, bad.records[wrong].name);
  }
}

class ExecutorInterleaves : public ExecutorTest {
 protected:
  // `rows` rows of a portion of every width (in elements), one behind the other in files 0, 1, 2,
  // 0, ... Each row is `apart` elements from the end of the one before it.
  static TensorSource portions(DType dtype, int64_t rows, const std::vector<int64_t>& widths,
                               int64_t apart = 0) {
    std::vector<TensorSource> parts;
    std::array<uint64_t, 3> at{3, 7, 12};
    for (size_t i = 0; i < widths.size(); ++i) {
      const int64_t stride = widths[i] + apart;
      const uint64_t size = static_cast<uint64_t>((rows - 1) * stride + widths[i]) * size_of(dtype);
      parts.push_back(TensorSource::stored({static_cast<FileId>(i % 3), at[i % 3], size}, dtype,
                                           {rows, widths[i]}, {stride, 1}));
      at[i % 3] += size;
    }
    return TensorSource::cat(1, std::move(parts));
  }

  void expect_interleaved_like_naive(const TensorSource& source) {
    // In the middle of a column, between columns, and one element before the end of a row.
    const int64_t row = source.shape()[1];
    for (const int64_t first : {int64_t{0}, int64_t{1}, row / 3, row - 1}) {
      const CopyPlan plan = plan_of(source.flatten().narrow(0, first, source.numel() - first - 1),
                                    first == 0 ? "" : "abc");
      EXPECT_TRUE(std::any_of(plan.items().begin(), plan.items().end(),
                              [](const CopyItem& item) { return item.op == Op::interleave; }));
      expect_like_naive(plan);
      EXPECT_EQ(stats_.bytes_read, plan.bytes_read());
    }
  }
};

TEST_F(ExecutorInterleaves, RowsOfAnyLength) {
  for (const auto& [rows, widths] :
       std::vector<std::pair<int64_t, std::vector<int64_t>>>{{60'000, {1, 2, 3, 1}},
                                                             {3000, {700, 700, 700, 700}},
                                                             {130, {16'000, 1, 16'000}},
                                                             {40, {40'000, 40'000, 3}},
                                                             {11, {131'072, 131'071, 131'073}},
                                                             {4, {600'000, 200'000, 262'144}}}) {
    SCOPED_TRACE(testing::PrintToString(widths));
    expect_interleaved_like_naive(portions(uint8, rows, widths));
  }
}

TEST_F(ExecutorInterleaves, ElementsThatAUnitMayNotCut) {
  expect_interleaved_like_naive(portions(float32, 7001, {21, 40, 33}));
  expect_interleaved_like_naive(portions(complex128, 2001, {21, 40, 33}));
  expect_interleaved_like_naive(portions(complex128, 5, {9001, 20'000, 10'000}));
}

TEST_F(ExecutorInterleaves, RowsThatLieApart) {
  expect_interleaved_like_naive(portions(uint8, 9001, {30, 40, 50}, 19));
  expect_interleaved_like_naive(portions(float32, 700, {1024, 900, 300}, 100));
  expect_interleaved_like_naive(portions(uint8, 11, {131'072, 131'071, 4096}, 40'000));
  // The same row again and again, beside rows that follow each other.
  expect_interleaved_like_naive(
      TensorSource::cat(1, {TensorSource::stored({0, 5, 70}, uint8, {9000, 70}, {0, 1}),
                            TensorSource::stored({1, 5, 9000 * 90}, uint8, {9000, 90})}));
}

TEST_F(ExecutorInterleaves, CastsThemAsItCopiesThem) {
  for (const int64_t apart : {0, 5}) {
    for (const TensorSource& whole : {portions(bfloat16, 9000, {30, 40, 50}, apart),
                                      portions(bfloat16, 30, {9000, 1, 30'001}, apart),
                                      portions(bfloat16, 3, {100'000, 200'000, 150'000}, apart)}) {
      const TensorSource source = whole.flatten().narrow(0, 31, whole.numel() - 31);
      const std::string copied = test::run_plan(plan_of(source), inputs_).at(0);
      std::string expected = "abc";
      expected.resize(3 + copied.size() * 2);
      convert(bfloat16, float32, as_byte_span(copied).data(),
              reinterpret_cast<std::byte*>(expected.data() + 3), copied.size() / 2);
      const CopyPlan plan = plan_of(source.to(float32), "abc");
      EXPECT_TRUE(outputs_of(plan).at(0) == expected);
      EXPECT_EQ(stats_.bytes_read, plan.bytes_read());
    }
  }
}

TEST_F(ExecutorInterleaves, ReadElementsGivesWhatIsExecuted) {
  for (const int64_t apart : {0, 5}) {
    const TensorSource source = portions(bfloat16, 500, {30, 40, 50}, apart);
    std::string bytes(source.nbytes(), '\0');
    read_elements(inputs_, source, 0, source.numel(),
                  std::as_writable_bytes(std::span(bytes.data(), bytes.size())));
    EXPECT_TRUE(bytes == test::run_plan(plan_of(source), inputs_).at(0));
    EXPECT_TRUE(bytes == outputs_of(plan_of(source)).at(0));
  }
}

TEST_F(ExecutorInterleaves, DigestsCoverThem) {
  const TensorSource source = portions(float32, 3000, {70, 70, 70});
  PlanBuilder builder;
  const OutputId out = builder.add_output("out", 3 + source.nbytes() + 4);
  builder.put_literal(out, 0, "abc");
  builder.put(out, 3, source);
  builder.put_literal(out, 3 + source.nbytes(), std::string_view("\0\0\0\0", 4));
  builder.add_digest({out, 0, 3 + source.nbytes(), {3 + source.nbytes()}});
  expect_like_naive(builder.finish());
}

TEST_F(ExecutorInterleaves, RecordsAreCheckedOnTheWay) {
  // Three ranks' portions of 4000 rows, each in two records, cut in the middle of a row.
  constexpr int64_t kWidth = 101;
  constexpr int64_t kCut = 1000 * kWidth + 37;
  constexpr int64_t kCount = 4000 * kWidth;
  ExecOptions options;
  std::vector<TensorSource> parts;
  for (FileId file = 0; file < 3; ++file) {
    const auto record = [&](uint64_t offset, int64_t count) {
      const uint64_t size = 4 * static_cast<uint64_t>(count);
      options.records.push_back({{file, offset, size},
                                 zlib_crc(std::string_view(contents_[file]).substr(offset, size)),
                                 "data/" + std::to_string(offset)});
      return flat(file, offset, float32, static_cast<uint64_t>(count));
    };
    parts.push_back(TensorSource::cat(0, {record(64, kCut), record(2 * kMiB, kCount - kCut)})
                        .view({4000, kWidth}));
  }
  const TensorSource weight = TensorSource::cat(1, std::move(parts));
  for (const TensorSource& source : {weight, weight.to(bfloat16)}) {
    const CopyPlan plan = plan_of(source, "abc");
    EXPECT_LE(plan.items().size(), 1 + 2 + 6u);
    outputs_of(plan, options);
    EXPECT_EQ(stats_.records_checked, 6u);
    EXPECT_EQ(stats_.bytes_read, plan.bytes_read());
    // One bit of the file, wherever it is.
    for (size_t i = 0; i < options.records.size(); ++i) {
      const Extent& extent = options.records[i].extent;
      for (const uint64_t at : {uint64_t{0}, extent.size / 2, extent.size - 1}) {
        std::string changed = contents_[extent.file];
        changed[extent.offset + at] = static_cast<char>(changed[extent.offset + at] ^ 4);
        folder_.write(std::to_string(extent.file) + ".pt", changed);
        EXPECT_ERROR(outputs_of(plan, options), CorruptError, options.records[i].name);
      }
      folder_.write(std::to_string(extent.file) + ".pt", contents_[extent.file]);
    }
  }
}

TEST_F(ExecutorInterleaves, RecordsOfRowsThatLieApartAreReadOnceMore) {
  // All but the last column of file 0, and portions without gaps of file 1.
  const TensorSource source = TensorSource::cat(
      1, {TensorSource::stored({0, 64, 400 * 1000 - 1}, uint8, {1000, 399}, {400, 1}),
          TensorSource::stored({1, 64, 300 * 1000}, uint8, {1000, 300})});
  ExecOptions options;
  for (const auto& [file, size] : {std::pair<FileId, uint64_t>{0, 400'000}, {1, 300'000}}) {
    options.records.push_back({{file, 64, size},
                               zlib_crc(std::string_view(contents_[file]).substr(64, size)),
                               "data/" + std::to_string(file)});
  }
  const CopyPlan plan = plan_of(source);
  outputs_of(plan, options);
  EXPECT_EQ(stats_.records_checked, 2u);
  EXPECT_EQ(stats_.bytes_read, plan.bytes_read() + 400'000);
  for (InputRecord& record : options.records) {
    record.crc32 ^= 1;
    EXPECT_ERROR(outputs_of(plan, options), CorruptError, record.name);
    record.crc32 ^= 1;
  }
}

class ExecutorFailures : public ExecutorTest {
 protected:
  struct Hook : MemorySink {
    Hook(const CopyPlan& plan, std::function<void(int)> on_write)
        : MemorySink(plan), on_write_(std::move(on_write)) {}
    void write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) override {
      on_write_(++count_);
      MemorySink::write_at(out, offset, bytes);
    }
    std::function<void(int)> on_write_;
    std::atomic<int> count_{0};
  };

  CopyPlan many_units() {
    PlanBuilder builder;
    for (size_t i = 0; i < 6; ++i) {
      const OutputId out = builder.add_output(std::to_string(i), 5 * kMiB);
      builder.put(out, 0, flat(static_cast<FileId>(i % 3), 0, uint8, 5 * kMiB));
    }
    return builder.finish();
  }
};

TEST_F(ExecutorFailures, StopBeforeTheFirstWriteWhenCancelledAtOnce) {
  const CopyPlan plan = many_units();
  for (const unsigned threads : kThreadCounts) {
    MemorySink sink(plan);
    Progress progress;
    progress.cancelled = true;
    EXPECT_ERROR(execute(plan, inputs_, sink, progress, {.threads = threads}), InterruptedError,
                 "interrupted");
    EXPECT_EQ(sink.writes(), 0);
  }
}

TEST_F(ExecutorFailures, StopSoonWhenCancelledMidway) {
  const CopyPlan plan = many_units();
  for (const unsigned threads : kThreadCounts) {
    Progress progress;
    Hook sink(plan, [&](int n) {
      if (n == 3) progress.cancelled = true;
    });
    EXPECT_ERROR(execute(plan, inputs_, sink, progress, {.threads = threads}), InterruptedError,
                 "interrupted");
    // Every thread may have been in the middle of one unit.
    EXPECT_LE(sink.count_, 3 + static_cast<int>(threads));
  }
}

TEST_F(ExecutorFailures, PassOnWhatTheSinkThrowsAtAnyWrite) {
  const CopyPlan plan = many_units();
  for (const unsigned threads : kThreadCounts) {
    for (const int failing : {1, 2, 13, 30}) {
      Progress progress;
      Hook sink(plan, [&](int n) {
        if (n == failing) throw IoError({.file = "out"}, "cannot write", ENOSPC);
      });
      EXPECT_ERROR(execute(plan, inputs_, sink, progress, {.threads = threads}), IoError,
                   "out: cannot write: No space left");
      EXPECT_LT(progress.bytes_done, plan.bytes_written());
    }
  }
}

TEST_F(ExecutorFailures, PassOnWhatFinishThrows) {
  struct BadFinish : MemorySink {
    using MemorySink::MemorySink;
    void finish(OutputId out) override {
      if (out == 2) throw IoError({.file = "2"}, "cannot close", EIO);
    }
  };
  const CopyPlan plan = many_units();
  BadFinish sink(plan);
  Progress progress;
  EXPECT_ERROR(execute(plan, inputs_, sink, progress), IoError, "2: cannot close");
}

TEST_F(ExecutorFailures, NameTheInputThatWasTruncatedAfterPlanning) {
  const CopyPlan plan = many_units();
  plan.validate(test::planned(inputs_));
  std::filesystem::resize_file(folder_.path() / "1.pt", 3 * kMiB + 5);
  for (const unsigned threads : kThreadCounts) {
    MemorySink sink(plan);
    Progress progress;
    // Several threads may meet the end at different places.
    EXPECT_ERROR(execute(plan, inputs_, sink, progress, {.threads = threads}), IoError,
                 threads == 1 ? "1.pt: at 3145733: file ends" : "1.pt: at ");
  }
}

TEST_F(ExecutorFailures, RefuseACastNobodyKnows) {
  const CopyPlan plan = plan_of(flat(0, 0, int64, 10).to(bfloat16));
  MemorySink sink(plan);
  Progress progress;
  EXPECT_ERROR(execute(plan, inputs_, sink, progress), UnsupportedError,
               "cannot convert int64 to bfloat16");
}

TEST_F(ExecutorFailures, LeaveTheExecutorUsable) {
  const CopyPlan plan = many_units();
  Progress progress;
  Hook sink(plan, [](int) { throw IoError({}, "no", 0); });
  EXPECT_ERROR(execute(plan, inputs_, sink, progress, {.threads = 8}), IoError, "no");
  expect_like_naive(plan);
}

}  // namespace
}  // namespace dsckpt
