#include "plan/source_part.h"

#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "format/read_tensor.h"
#include "support/expect_error.h"
#include "support/plan_tools.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

using enum DType;

class SourcePartTest : public testing::Test {
 protected:
  SourcePartTest() {
    for (uint64_t i = 0; i < 3; ++i) {
      inputs_.add(folder_.write("input" + std::to_string(i), test::random_bytes(4096, i)));
    }
    // Equal, for same().
    const std::string equal = test::random_bytes(4096, 9);
    for (const char* name : {"a", "b"}) same_.push_back(inputs_.add(folder_.write(name, equal)));
  }

  static TensorSource flat(FileId file, uint64_t offset, int64_t count) {
    return TensorSource::stored({file, offset, static_cast<uint64_t>(count) * 4}, float32, {count});
  }

  std::vector<std::byte> read(const TensorSource& source, int64_t first, int64_t count) const {
    std::vector<std::byte> bytes(static_cast<size_t>(count) * size_of(source.dtype()));
    read_elements(inputs_, source, first, count, bytes);
    return bytes;
  }

  // All ranges of it are what they are after they were handed on.
  void expect_same_elements(const TensorSource& source) const {
    const int64_t step = std::max<int64_t>(source.numel() / 7, 1);
    for (int64_t first = 0; first < source.numel(); first += step) {
      for (int64_t count = 1; first + count <= source.numel(); count += step) {
        VarintWriter writer;
        write_source(writer, source, first, count, [](FileId file) { return file + 100; });
        const std::string bytes = writer.take();
        VarintReader reader(bytes);
        const TensorSource again = read_source(reader, [](FileId file) { return file - 100; });
        EXPECT_TRUE(reader.at_end());
        EXPECT_EQ(again.dtype(), source.dtype());
        EXPECT_EQ(again.shape(), Shape{count});
        EXPECT_EQ(read(again, 0, count), read(source, first, count)) << first << " " << count;
      }
    }
  }

  test::TempFolder folder_;
  InputFiles inputs_;
  std::vector<FileId> same_;
};

TEST_F(SourcePartTest, EveryKindOfTensorIsHandedOn) {
  const TensorSource plain = flat(0, 64, 120);
  expect_same_elements(plain);
  expect_same_elements(TensorSource::stored({1, 8, 4000}, uint8, {10, 20}, {3, 17}));
  expect_same_elements(TensorSource::stored({1, 8, 4000}, bfloat16, {4, 5, 6}, {7, 0, 40}));
  expect_same_elements(TensorSource::zeros(float16, {9, 5}));
  expect_same_elements(TensorSource::cat(0, {flat(0, 4, 50), flat(1, 8, 3), flat(2, 0, 70)}));
  expect_same_elements(TensorSource::cat(
      1,
      {flat(0, 0, 60).view({12, 5}), flat(1, 16, 36).view({12, 3}), flat(2, 4, 12).view({12, 1})}));
  expect_same_elements(
      TensorSource::mean({flat(0, 0, 90), flat(1, 40, 90), flat(2, 80, 90)}).view({9, 10}));
  expect_same_elements(
      TensorSource::same({flat(same_[0], 12, 90), flat(same_[1], 12, 90)}, "both"));
  const auto parts = std::make_shared<const std::vector<TensorSource>>(
      std::vector<TensorSource>{flat(0, 0, 100), flat(1, 0, 100), flat(2, 0, 100)});
  expect_same_elements(TensorSource::cat_narrowed(parts, 7, 30).narrow(0, 5, 80).view({8, 10}));
}

// The places and types of all runs of a tensor.
std::vector<std::tuple<DType, DType, Combine, uint64_t, std::vector<Extent>>> runs_of(
    const TensorSource& source) {
  std::vector<std::tuple<DType, DType, Combine, uint64_t, std::vector<Extent>>> runs;
  source.lower([&](const SourceRun& run) {
    std::vector<Extent> places;
    for (const Rows& rows : run.sources()) places.push_back(rows.span(run.rows));
    if (run.combine == Combine::zeros) places.clear();
    runs.emplace_back(run.stored, run.result, run.combine, run.numel(), places);
  });
  return runs;
}

TEST_F(SourcePartTest, CastsAreMadeThere) {
  for (const TensorSource& source :
       {flat(0, 64, 120).to(bfloat16),
        TensorSource::cat(0, {flat(0, 0, 8).to(float16), TensorSource::zeros(float16, {4}),
                              TensorSource::stored({1, 8, 24}, float16, {12})}),
        TensorSource::mean({flat(0, 0, 90), flat(1, 40, 90)}).to(bfloat16)}) {
    VarintWriter writer;
    write_source(writer, source, 0, source.numel(), [](FileId file) { return file; });
    const std::string bytes = writer.take();
    VarintReader reader(bytes);
    const TensorSource again = read_source(reader, [](FileId file) { return file; });
    EXPECT_TRUE(reader.at_end());
    EXPECT_EQ(again.dtype(), source.dtype());
    EXPECT_EQ(runs_of(again), runs_of(source));
  }
}

TEST_F(SourcePartTest, WhatMustBeTheSameIsComparedThere) {
  const TensorSource source =
      TensorSource::same({flat(0, 0, 4), flat(1, 0, 4)}, "'norm' of ranks 0 and 1");
  VarintWriter writer;
  write_source(writer, source, 1, 2, [](FileId file) { return file; });
  const std::string bytes = writer.take();
  VarintReader reader(bytes);
  const TensorSource again = read_source(reader, [](FileId file) { return file; });
  EXPECT_ERROR(read(again, 0, 2), InconsistentError, "'norm' of ranks 0 and 1 are not the same");
}

TEST_F(SourcePartTest, WhatIsComputedStaysHere) {
  VarintWriter writer;
  const auto number = [](FileId file) { return file; };
  EXPECT_THROW(
      write_source(writer, TensorSource::sum({flat(0, 0, 4), flat(1, 0, 4)}), 0, 4, number),
      std::logic_error);
}

TEST_F(SourcePartTest, BytesThatEndEarlyOrAreOthersAreRefused) {
  const TensorSource source = TensorSource::cat(
      1,
      {flat(0, 0, 60).view({12, 5}), flat(1, 16, 36).view({12, 3}), flat(2, 4, 12).view({12, 1})});
  VarintWriter writer;
  write_source(writer, source, 0, source.numel(), [](FileId file) { return file; });
  const std::string bytes = writer.take();
  const auto read = [](std::string_view some) {
    VarintReader reader(some);
    return read_source(reader, [](FileId file) { return file; });
  };
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(read(std::string_view(bytes).substr(0, size)), Error) << size;
  }
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const char bit : {'\x01', '\x40', '\x7f'}) {
      std::string other = bytes;
      other[i] = static_cast<char>(other[i] ^ bit);
      try {
        read(other);
      } catch (const Error&) {
      }
    }
  }
}

}  // namespace
}  // namespace dsckpt
