// Random plans, executed and compared with the naive runner.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "dsckpt/error.h"
#include "exec/executor.h"
#include "plan/copy_plan.h"
#include "support/plan_runner.h"
#include "support/plan_tools.h"
#include "support/portion_runner.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

class PlanProperty : public testing::TestWithParam<int> {
 protected:
  static constexpr uint64_t kFileBytes = 3'000'000;

  PlanProperty() : random_(static_cast<uint64_t>(GetParam())) {
    for (int i = 0; i < 3; ++i) {
      inputs_.add(folder_.write(std::to_string(i), test::random_bytes(kFileBytes, random_())));
    }
    // Numbers below 2: of several NaNs or infinities one NaN comes that nobody has settled.
    std::string numbers = test::random_bytes(kFileBytes, random_());
    for (size_t i = 3; i < numbers.size(); i += 4) numbers[i] &= '\xbf';
    inputs_.add(folder_.write("numbers", numbers));
    std::string twice = test::random_bytes(kFileBytes / 2, random_());
    twice += twice;
    inputs_.add(folder_.write("twice", twice));
  }

  int64_t pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  // Small numbers often, large ones at times.
  int64_t pick_log(int64_t high) { return pick(0, int64_t{1} << pick(0, 62)) % (high + 1); }

  // Elements [begin, begin + count) of an input, in a few pieces at times.
  TensorSource cut(FileId file, uint64_t begin, DType dtype, int64_t count) {
    const auto run = [&](int64_t first, int64_t length) {
      const auto element = static_cast<int64_t>(size_of(dtype));
      return TensorSource::stored({file, begin + static_cast<uint64_t>(first * element),
                                   static_cast<uint64_t>(length * element)},
                                  dtype, {length});
    };
    const int64_t a = pick(0, count);
    const int64_t b = pick(a, count);
    if (pick(0, 1) == 0) return run(0, count);
    return TensorSource::cat(0, {run(0, a), run(a, b - a), run(b, count - b)});
  }

  TensorSource mean() {
    const int64_t count = pick_log(200'000);
    std::vector<TensorSource> parts;
    for (int64_t i = pick(1, 5); i > 0; --i) {
      parts.push_back(cut(3, 4 * static_cast<uint64_t>(pick(0, 500'000)), DType::float32, count));
    }
    return TensorSource::mean(std::move(parts));
  }

  TensorSource same() {
    const DType dtype = pick(0, 1) == 0 ? DType::uint8 : DType::float64;
    const int64_t count = pick_log(100'000);
    const auto begin = static_cast<uint64_t>(pick(0, 600'000));
    std::vector<TensorSource> parts;
    for (int64_t i = pick(1, 4); i > 0; --i) {
      const uint64_t copy = kFileBytes / 2 * static_cast<uint64_t>(pick(0, 1));
      parts.push_back(cut(4, copy + begin, dtype, count));
    }
    return TensorSource::same(std::move(parts), "it");
  }

  // Slices of a matrix side by side, each in one piece, in a few, or in rows that lie apart.
  TensorSource slices() {
    static constexpr DType kTypes[] = {DType::uint8, DType::bfloat16, DType::complex128};
    const DType dtype = kTypes[pick(0, 2)];
    const auto element = static_cast<int64_t>(size_of(dtype));
    const int64_t count = pick(2, 6);
    const int64_t room = 1'000'000 / element;
    const int64_t widest = 1 + pick_log(std::min<int64_t>(room / 4, 40'000));
    const int64_t rows = 1 + pick_log(room / widest - 1);
    std::vector<TensorSource> parts;
    for (int64_t i = 0; i < count; ++i) {
      const auto file = static_cast<FileId>(pick(0, 2));
      const auto begin = static_cast<uint64_t>(pick(0, 1000));
      const int64_t width = pick(0, 3) == 0 ? pick(0, widest) : widest;
      if (pick(0, 3) != 0) {
        parts.push_back(cut(file, begin, dtype, rows * width).view({rows, width}));
        continue;
      }
      const int64_t stride = std::min(width + pick_log(9999), 2 * room / rows);
      parts.push_back(TensorSource::stored({file, begin, kFileBytes - begin}, dtype, {rows, width},
                                           {stride, 1}));
    }
    const TensorSource all = TensorSource::cat(1, std::move(parts)).flatten();
    const int64_t first = pick(0, 3) == 0 ? pick(0, all.numel()) : 0;
    return all.narrow(0, first, all.numel() - first);
  }

  TensorSource piece() {
    const int64_t kind = pick(0, 12);
    if (kind == 0) return mean();
    if (kind == 1) return same();
    if (kind == 12) return TensorSource::zeros(DType::float64, {pick_log(400'000)});
    if (kind >= 10) return slices();
    static constexpr DType kTypes[] = {DType::uint8, DType::bfloat16, DType::float32,
                                       DType::float64, DType::complex128};
    const DType dtype = kTypes[pick(0, 4)];
    const auto file = static_cast<FileId>(pick(0, 2));
    const auto element = static_cast<int64_t>(size_of(dtype));
    const uint64_t offset = static_cast<uint64_t>(pick(0, 1000));
    const int64_t room = (static_cast<int64_t>(kFileBytes) - 1000) / element;
    if (pick(0, 2) != 0) {
      const int64_t count = pick_log(room);
      return TensorSource::stored({file, offset, static_cast<uint64_t>(count * element)}, dtype,
                                  {count});
    }
    const int64_t columns = 1 + pick_log(9999);
    const int64_t stride = pick(0, 4) == 0 ? pick(0, columns) : columns + pick_log(9999);
    const int64_t rows =
        1 + pick_log(std::min<int64_t>((room - columns) / std::max<int64_t>(stride, 1),
                                       2'000'000 / columns));
    const int64_t span = ((rows - 1) * stride + columns) * element;
    return TensorSource::stored({file, offset, static_cast<uint64_t>(span)}, dtype, {rows, columns},
                                {stride, 1});
  }

  CopyPlan random_plan() {
    PlanBuilder builder;
    const int64_t outputs = pick(1, 5);
    for (int64_t i = 0; i < outputs; ++i) {
      struct Put {
        uint64_t dst;
        std::optional<TensorSource> source;
        std::string literal;
      };
      std::vector<Put> puts;
      std::vector<Digest> digests;
      uint64_t size = 0;
      std::vector<uint64_t> listed;  // digests that go into a directory at the end as well
      for (int64_t n = pick(0, 12); n > 0; --n) {
        const uint64_t begin = size;
        for (int64_t k = pick(0, 3); k > 0; --k) {
          puts.push_back({size, piece(), {}});
          size += puts.back().source->nbytes();
        }
        puts.push_back({size, {}, test::random_bytes(static_cast<size_t>(pick_log(3000)), 1)});
        size += puts.back().literal.size();
        if (pick(0, 1) == 0) {
          if (pick(0, 1) == 0) listed.push_back(digests.size());
          digests.push_back({static_cast<OutputId>(i), begin, size, {size}});
          puts.push_back({size, {}, std::string(4, '\0')});
          size += 4;
        }
      }
      std::shuffle(listed.begin(), listed.end(), random_);
      for (const uint64_t which : listed) {
        const auto entry = static_cast<uint64_t>(pick_log(6000));
        digests[which].patches.push_back(size + entry);
        puts.push_back({size, {}, test::random_bytes(static_cast<size_t>(entry) + 4, 1)});
        size += entry + 4;
      }
      const OutputId out = builder.add_output(std::to_string(i), size);
      std::shuffle(puts.begin(), puts.end(), random_);
      for (const Put& put : puts) {
        if (put.source) {
          builder.put(out, put.dst, *put.source);
        } else {
          builder.put_literal(out, put.dst, put.literal);
        }
      }
      std::shuffle(digests.begin(), digests.end(), random_);
      for (Digest& digest : digests) builder.add_digest(std::move(digest));
    }
    return builder.finish();
  }

  test::TempFolder folder_;
  InputFiles inputs_;
  std::mt19937_64 random_;
};

TEST_P(PlanProperty, IsExecutedAsTheNaiveRunnerDoesIt) {
  bool interleaves = false;
  bool zeros = false;
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    const CopyPlan plan = random_plan();
    for (const CopyItem& item : plan.items()) {
      interleaves = interleaves || item.op == Op::interleave;
      zeros = zeros || item.op == Op::zeros;
    }
    const std::vector<std::string> expected = test::run_plan(plan, inputs_);
    for (const unsigned threads : {1u, 2u, 8u}) {
      test::MemorySink sink(plan);
      Progress progress;
      ExecOptions options;
      options.threads = threads;
      options.unit_bytes = uint64_t{4096} << pick(0, 10);
      const RunStats stats = execute(plan, inputs_, sink, progress, options);
      ASSERT_TRUE(sink.all_finished());
      ASSERT_TRUE(sink.outputs() == expected) << threads << " threads";
      ASSERT_EQ(stats.bytes_read, plan.bytes_read());
      const uint64_t cut = options.unit_bytes * static_cast<uint64_t>(pick(1, 4));
      ASSERT_TRUE(expected ==
                  test::run_in_portions(plan, inputs_, options, static_cast<int>(pick(1, 5)), cut));
    }
  }
  EXPECT_TRUE(interleaves);
  EXPECT_TRUE(zeros);
}

INSTANTIATE_TEST_SUITE_P(Seeds, PlanProperty, testing::Range(0, 12));

}  // namespace
}  // namespace dsckpt
