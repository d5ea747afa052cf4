#include "plan/copy_plan.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "dsckpt/error.h"
#include "support/expect_error.h"

namespace dsckpt {
namespace {

// One input of 100 bytes, named in.pt.
const std::vector<PlannedInput> kInputs{{"in.pt", 100}};

TensorSource bytes_at(uint64_t offset, int64_t count) {
  return TensorSource::stored({0, offset, static_cast<uint64_t>(count)}, DType::uint8, {count});
}

// A plan of one output of `size` bytes that `fill` adds items to.
template <typename Fill>
CopyPlan plan_of(uint64_t size, Fill&& fill) {
  PlanBuilder builder;
  builder.add_output("out", size);
  fill(builder);
  return builder.finish();
}

TEST(CopyPlan, AcceptsATilingWhateverTheOrderOfItsPieces) {
  const CopyPlan plan = plan_of(30, [](PlanBuilder& b) {
    b.put_literal(0, 25, "tail!");
    b.put(0, 5, bytes_at(80, 20));
    b.put_literal(0, 0, "head:");
  });
  EXPECT_NO_THROW(plan.validate(kInputs));
  ASSERT_EQ(plan.items().size(), 3u);
  EXPECT_EQ(plan.items()[0].dst, 0u);
  EXPECT_EQ(plan.items()[1].dst, 5u);
  EXPECT_EQ(plan.items()[2].dst, 25u);
  EXPECT_EQ(plan.bytes_written(), 30u);
  EXPECT_EQ(plan.bytes_read(), 20u);
  EXPECT_EQ(plan.literals().substr(plan.items()[0].source.offset, 5), "head:");
}

TEST(CopyPlan, HasBytesOnceThatArePutTwice) {
  const CopyPlan plan = plan_of(10, [](PlanBuilder& b) {
    const Extent kept = b.keep_literal("twice");
    b.put_kept_literal(0, 0, kept);
    b.put_kept_literal(0, 5, kept);
    b.put_kept_literal(0, 10, b.keep_literal(""));
  });
  EXPECT_NO_THROW(plan.validate(kInputs));
  EXPECT_EQ(plan.literals(), "twice");
  EXPECT_EQ(plan.items().size(), 2u);
}

// Experts one by one are such elements of two tensors.
TEST(CopyPlan, HasAnUpdateOnceWhoseElementsAreApart) {
  const auto floats = [](uint64_t offset, Shape shape) {
    const auto bytes = static_cast<uint64_t>(numel(shape)) * 4;
    return TensorSource::stored({0, offset, bytes}, DType::float32, std::move(shape));
  };
  const auto updated = [&](uint64_t offset) {
    return TensorSource::low_rank_update({.base = floats(offset, {4, 2}),
                                          .rows = 4,
                                          .columns = 2,
                                          .left = {},
                                          .right = FactorView{floats(0, {2}), 0, 2, 1}});
  };
  const TensorSource one = updated(8);
  const TensorSource other = updated(40);
  const CopyPlan plan = plan_of(64, [&](PlanBuilder& b) {
    b.put(0, 0, one.narrow(0, 0, 2));
    b.put(0, 16, other.narrow(0, 0, 2));
    b.put(0, 32, one.narrow(0, 2, 2));
    b.put(0, 48, other.narrow(0, 2, 2));
  });
  EXPECT_NO_THROW(plan.validate(kInputs));
  EXPECT_EQ(plan.items().size(), 4u);
  EXPECT_EQ(plan.updates().size(), 2u);
}

TEST(CopyPlan, AcceptsEmptyOutputsAndAnEmptyPlan) {
  PlanBuilder builder;
  EXPECT_NO_THROW(builder.finish().validate({}));
  builder.add_output("a", 0);
  builder.add_output("b", 1);
  builder.add_output("c", 0);
  builder.put_literal(1, 0, "x");
  builder.put_literal(2, 0, "");
  EXPECT_NO_THROW(builder.finish().validate({}));
  EXPECT_TRUE(builder.finish().outputs().empty());
}

TEST(CopyPlan, RefusesAGap) {
  const CopyPlan front = plan_of(10, [](PlanBuilder& b) { b.put(0, 2, bytes_at(0, 8)); });
  EXPECT_ERROR(front.validate(kInputs), InconsistentError, "out: at 0: bytes that nothing writes");
  const CopyPlan middle = plan_of(10, [](PlanBuilder& b) {
    b.put(0, 0, bytes_at(0, 4));
    b.put(0, 5, bytes_at(0, 5));
  });
  EXPECT_ERROR(middle.validate(kInputs), InconsistentError, "out: at 4: bytes that nothing writes");
  const CopyPlan end = plan_of(10, [](PlanBuilder& b) { b.put(0, 0, bytes_at(0, 9)); });
  EXPECT_ERROR(end.validate(kInputs), InconsistentError, "out: at 9: bytes that nothing writes");
  const CopyPlan nothing = plan_of(10, [](PlanBuilder&) {});
  EXPECT_ERROR(nothing.validate(kInputs), InconsistentError, "at 0: bytes that nothing writes");
}

TEST(CopyPlan, RefusesAnOverlap) {
  const CopyPlan partly = plan_of(10, [](PlanBuilder& b) {
    b.put(0, 0, bytes_at(0, 6));
    b.put(0, 5, bytes_at(0, 5));
  });
  EXPECT_ERROR(partly.validate(kInputs), InconsistentError,
               "out: at 5: bytes that are written twice");
  const CopyPlan twice = plan_of(5, [](PlanBuilder& b) {
    b.put(0, 0, bytes_at(0, 5));
    b.put(0, 0, bytes_at(0, 5));
  });
  EXPECT_ERROR(twice.validate(kInputs), InconsistentError, "at 0: bytes that are written twice");
}

TEST(CopyPlan, RefusesBytesBeyondTheEndOfAnOutput) {
  const CopyPlan plan = plan_of(10, [](PlanBuilder& b) { b.put(0, 0, bytes_at(0, 11)); });
  EXPECT_ERROR(plan.validate(kInputs), InconsistentError, "out: at 10: is written beyond its end");
}

TEST(CopyPlan, RefusesAnOutputThatWasNeverAdded) {
  const CopyPlan plan = plan_of(0, [](PlanBuilder& b) { b.put_literal(1, 0, "x"); });
  EXPECT_ERROR(plan.validate(kInputs), InconsistentError, "unknown file");
}

TEST(CopyPlan, RefusesToReadBeyondAnInput) {
  const CopyPlan plan = plan_of(11, [](PlanBuilder& b) { b.put(0, 0, bytes_at(90, 11)); });
  EXPECT_ERROR(plan.validate(kInputs), InconsistentError, "in.pt: at 90: reads up to byte 101");
  const CopyPlan good = plan_of(10, [](PlanBuilder& b) { b.put(0, 0, bytes_at(90, 10)); });
  EXPECT_NO_THROW(good.validate(kInputs));
  EXPECT_ERROR(good.validate({}), InconsistentError, "reads an unknown file");
}

TEST(CopyPlan, CountsTheStrideOfRowsWhenItLooksForTheEndOfAnInput) {
  // Rows of 2 bytes, 10 apart: the last of 10 ends at offset + 92.
  const auto rows_at = [](uint64_t offset) {
    return plan_of(20, [&](PlanBuilder& b) {
      b.put(0, 0, TensorSource::stored({0, offset, 92}, DType::uint8, {10, 2}, {10, 1}));
    });
  };
  EXPECT_EQ(rows_at(0).items().size(), 1u);
  EXPECT_NO_THROW(rows_at(8).validate(kInputs));
  EXPECT_ERROR(rows_at(9).validate(kInputs), InconsistentError, "reads up to byte 101 of 100");
}

TEST(CopyPlan, RefusesPathsThatLeaveTheOutputFolderOrAreNotPlain) {
  using std::string_literals::operator""s;
  for (const std::string& path : {"../x"s, "a/../x"s, "a/.."s, "/abs"s, "."s, "./x"s, "a/./x"s, ""s,
                                  "a//b"s, "a/"s, "/"s, "a\0b"s, "a/\0"s, "\0"s}) {
    PlanBuilder builder;
    builder.add_output(path, 0);
    EXPECT_ERROR(builder.finish().validate({}), InconsistentError, "not a path inside");
  }
  PlanBuilder builder;
  for (const char* path : {"a", "b/..c", "b/d..", "...", "b/.hidden", "b/c/d", "b c\n", "a\\b"}) {
    builder.add_output(path, 0);
  }
  EXPECT_NO_THROW(builder.finish().validate({}));
}

TEST(CopyPlan, RefusesAPathThatIsWrittenTwice) {
  PlanBuilder builder;
  for (const char* path : {"a/b", "a/c", "a/b"}) builder.add_output(path, 0);
  EXPECT_ERROR(builder.finish().validate({}), InconsistentError, "a/b: is written twice");
}

TEST(CopyPlan, RefusesAPathBelowAnotherOutput) {
  PlanBuilder builder;
  for (const char* path : {"a/b/c", "a/b"}) builder.add_output(path, 0);
  EXPECT_ERROR(builder.finish().validate({}), InconsistentError, "a/b/c: is below another output");
}

class Digests : public testing::Test {
 protected:
  // An output of 30 bytes: 4 zeros, [4, 14), 4 zeros, [18, 26), 4 zeros; and an empty output.
  static void expect_refused(std::vector<Digest> digests, const char* why = "malformed digest") {
    EXPECT_ERROR(plan_with(std::move(digests)).validate(kInputs), InconsistentError, why);
  }
  static CopyPlan plan_with(std::vector<Digest> digests) {
    PlanBuilder b;
    b.add_output("out", 30);
    b.add_output("empty", 0);
    const std::string_view zeros("\0\0\0\0", 4);
    b.put_literal(0, 0, zeros);
    b.put(0, 4, bytes_at(0, 10));
    b.put_literal(0, 14, zeros);
    b.put(0, 18, bytes_at(50, 8));
    b.put_literal(0, 26, zeros);
    for (Digest& digest : digests) b.add_digest(std::move(digest));
    return b.finish();
  }
};

TEST_F(Digests, AreAccepted) {
  EXPECT_NO_THROW(
      plan_with({{0, 4, 14, {0, 14}}, {0, 18, 26, {26}}, {1, 0, 0, {}}}).validate(kInputs));
  EXPECT_NO_THROW(plan_with({{0, 4, 26, {0}}}).validate(kInputs));
  EXPECT_NO_THROW(plan_with({{0, 14, 14, {14}}, {0, 30, 30, {}}}).validate(kInputs));
  EXPECT_NO_THROW(plan_with({{0, 0, 30, {}}}).validate(kInputs));
}

TEST_F(Digests, MustBeginAndEndWithItems) {
  expect_refused({{0, 5, 14, {0}}});
  expect_refused({{0, 4, 13, {0}}});
  expect_refused({{0, 7, 7, {0}}});
}

TEST_F(Digests, MustLieInTheirOutput) {
  expect_refused({{0, 4, 31, {0}}});
  expect_refused({{0, 31, 31, {}}});
  expect_refused({{0, 14, 4, {0}}});
  expect_refused({{2, 0, 0, {}}});
}

TEST_F(Digests, MustHaveTheirPatchesInTheOutput) {
  expect_refused({{0, 4, 14, {27}}});
  expect_refused({{0, 4, 14, {30}}});
  expect_refused({{0, 4, 14, {~uint64_t{0}}}});
  expect_refused({{0, 4, 14, {~uint64_t{0} - 3}}});
  expect_refused({{1, 0, 0, {0}}});
}

TEST_F(Digests, MustCoverNoPatch) {
  expect_refused({{0, 4, 14, {4}}}, "digests overlap");
  expect_refused({{0, 4, 14, {1}}}, "digests overlap");
  expect_refused({{0, 4, 14, {13}}}, "digests overlap");
  expect_refused({{0, 4, 26, {26}}, {0, 26, 30, {14}}}, "digests overlap");
}

TEST_F(Digests, MustNotOverlap) {
  expect_refused({{0, 4, 14, {0}}, {0, 4, 26, {26}}}, "digests overlap");
  expect_refused({{0, 4, 14, {0}}, {0, 18, 26, {2}}}, "digests overlap");
}

TEST(PlanBuilder, JoinsPiecesThatFollowEachOtherInOneFile) {
  const CopyPlan plan = plan_of(60, [](PlanBuilder& b) {
    b.put(0, 0, TensorSource::cat(0, {bytes_at(10, 20), bytes_at(30, 30), bytes_at(70, 10)}));
  });
  ASSERT_EQ(plan.items().size(), 2u);
  EXPECT_EQ(plan.items()[0].source.offset, 10u);
  EXPECT_EQ(plan.items()[0].source.row_bytes, 50u);
  EXPECT_EQ(plan.items()[1].source.offset, 70u);
  EXPECT_EQ(plan.items()[1].dst, 50u);
  EXPECT_NO_THROW(plan.validate(kInputs));
}

TEST(PlanBuilder, KeepsPiecesOfDifferentFilesAndTypesApart) {
  const auto part = [](FileId file, uint64_t offset, DType dtype) {
    return TensorSource::stored({file, offset, 8}, dtype,
                                {8 / static_cast<int64_t>(size_of(dtype))})
        .to(DType::float32);
  };
  const CopyPlan plan = plan_of(72, [&](PlanBuilder& b) {
    b.put(0, 0,
          TensorSource::cat(0, {part(0, 0, DType::bfloat16), part(0, 8, DType::bfloat16),
                                part(0, 16, DType::float16), part(0, 24, DType::float32),
                                part(1, 32, DType::float32)}));
  });
  ASSERT_EQ(plan.items().size(), 4u);
  EXPECT_EQ(plan.items()[0].op, Op::cast);
  EXPECT_EQ(plan.items()[0].source.row_bytes, 16u);
  EXPECT_EQ(plan.items()[0].dst_size(), 32u);
  EXPECT_EQ(plan.items()[1].from, DType::float16);
  EXPECT_EQ(plan.items()[1].dst, 32u);
  EXPECT_EQ(plan.items()[2].op, Op::copy);
  EXPECT_EQ(plan.items()[2].dst, 48u);
  EXPECT_EQ(plan.items()[3].source.file, 1u);
  EXPECT_EQ(plan.items()[3].dst, 56u);
}

TEST(PlanBuilder, KeepsRowsAsOneItem) {
  const CopyPlan plan = plan_of(40, [](PlanBuilder& b) {
    b.put(0, 0, TensorSource::stored({0, 0, 100}, DType::uint8, {10, 10}).narrow(1, 3, 4));
  });
  EXPECT_EQ(plan.bytes_read(), 40u);
  EXPECT_NO_THROW(plan.validate(kInputs));
}

// Where each element lies: file and offset.
using Places = std::vector<std::pair<FileId, uint64_t>>;

Places places_of(const TensorSource& source, int64_t first, int64_t count, size_t* runs = nullptr) {
  Places places;
  source.lower(first, count, [&](const SourceRun& run) {
    if (runs != nullptr) ++*runs;
    for (uint64_t row = 0; row < run.rows; ++row) {
      for (const Rows& rows : run.sources()) {
        for (uint64_t at = 0; at < rows.row_bytes; at += size_of(run.stored)) {
          places.emplace_back(rows.file, rows.begin_of(row) + at);
        }
      }
    }
  });
  return places;
}

TEST(TensorSource, ColumnsLieWhereTheirElementsDo) {
  std::mt19937 random(7);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  for (int round = 0; round < 300; ++round) {
    // Matrices of several files each, side by side, and columns of columns of them.
    const int64_t rows = 2 + below(9);
    std::vector<TensorSource> side_by_side;
    FileId file = 0;
    for (int64_t i = 1 + below(3); i > 0; --i) {
      const int64_t width = 1 + below(6);
      std::vector<TensorSource> pieces;
      for (int64_t left = rows * width; left > 0;) {
        const int64_t taken = std::min(left, 1 + below(20));
        pieces.push_back(TensorSource::stored(
            {file++, static_cast<uint64_t>(below(50)) * 4, static_cast<uint64_t>(taken) * 4},
            DType::float32, {taken}));
        left -= taken;
      }
      side_by_side.push_back(TensorSource::cat(0, std::move(pieces)).view({rows, width}));
    }
    TensorSource source = TensorSource::cat(1, std::move(side_by_side));
    for (int64_t i = below(3); i > 0 && source.shape()[1] > 1; --i) {
      const int64_t start = below(source.shape()[1]);
      source = source.narrow(1, start, 1 + below(source.shape()[1] - start));
    }
    const int64_t first = below(source.numel());
    const int64_t count = 1 + below(source.numel() - first);
    Places one_by_one;
    for (int64_t i = first; i < first + count; ++i) {
      const Places place = places_of(source, i, 1);
      one_by_one.insert(one_by_one.end(), place.begin(), place.end());
    }
    EXPECT_TRUE(places_of(source, first, count) == one_by_one) << round;
  }
}

TEST(TensorSource, ColumnsOfOneFileAreOneRun) {
  size_t runs = 0;
  const TensorSource matrix =
      TensorSource::stored({0, 0, 4000}, DType::float32, {1000}).view({100, 10});
  places_of(matrix.narrow(1, 3, 4), 0, 400, &runs);
  EXPECT_EQ(runs, 1u);
  places_of(TensorSource::cat(1, {matrix, matrix}).narrow(1, 5, 10), 0, 1000, &runs);
  EXPECT_EQ(runs, 2u);
}

TEST(PlanBuilder, PutsTheOperandsOfACombinedTensorBesideItsItems) {
  const auto floats = [](uint64_t offset, int64_t count) {
    return TensorSource::stored({0, offset, static_cast<uint64_t>(count) * 4}, DType::float32,
                                {count});
  };
  const CopyPlan plan = plan_of(60, [&](PlanBuilder& b) {
    // The second and third part are cut into runs that go on from one another.
    b.put(0, 0,
          TensorSource::mean({floats(0, 6), TensorSource::cat(0, {floats(40, 2), floats(48, 4)}),
                              TensorSource::cat(0, {floats(76, 2), floats(68, 4)})}));
    b.put(0, 24,
          TensorSource::same({floats(0, 6), floats(24, 6)}, "'w' on ranks 0 and 1")
              .to(DType::bfloat16));
    b.put(0, 36, TensorSource::same({bytes_at(10, 4), bytes_at(20, 4)}, "other"));
    b.put(0, 40, TensorSource::same({bytes_at(10, 10), bytes_at(30, 10)}, "'w' on ranks 0 and 1"));
    b.put(0, 50, TensorSource::same({bytes_at(10, 10)}, "nothing else"));
  });
  EXPECT_NO_THROW(plan.validate(kInputs));
  ASSERT_EQ(plan.items().size(), 6u);
  using Operands = std::vector<Rows>;
  const auto operands = [&](size_t i) {
    const CopyItem& item = plan.items()[i];
    const auto some = std::span(plan.operands()).subspan(item.operand_begin, item.operand_count);
    return Operands(some.begin(), some.end());
  };
  EXPECT_EQ(plan.items()[0].op, Op::mean);
  EXPECT_EQ(plan.items()[0].source.row_bytes, 8u);
  EXPECT_EQ(operands(0), (Operands{{0, 0, 8}, {0, 40, 8}, {0, 76, 8}}));
  EXPECT_EQ(plan.items()[1].op, Op::mean);
  EXPECT_EQ(plan.items()[1].dst, 8u);
  EXPECT_EQ(plan.items()[1].source.row_bytes, 16u);
  EXPECT_EQ(operands(1), (Operands{{0, 8, 16}, {0, 48, 16}, {0, 68, 16}}));
  EXPECT_EQ(plan.items()[2].op, Op::same);
  EXPECT_EQ(plan.items()[2].to, DType::bfloat16);
  EXPECT_EQ(plan.items()[2].dst_size(), 12u);
  EXPECT_EQ(operands(2), (Operands{{0, 0, 24}, {0, 24, 24}}));
  EXPECT_EQ(plan.texts().at(plan.items()[2].what), "'w' on ranks 0 and 1");
  EXPECT_EQ(plan.texts().at(plan.items()[3].what), "other");
  EXPECT_EQ(plan.items()[4].what, plan.items()[2].what);
  EXPECT_EQ(plan.items()[5].op, Op::copy);
  EXPECT_EQ(operands(5), Operands{});
  EXPECT_EQ(plan.bytes_read(), 3u * 24 + 2 * 24 + 2 * 4 + 2 * 10 + 10);
}

TEST(PlanBuilder, MergesRunsOfCombinedTensorsThatGoOnInEveryOperand) {
  const CopyPlan plan = plan_of(30, [](PlanBuilder& b) {
    const auto same = [](int64_t at) {
      return TensorSource::same(
          {bytes_at(static_cast<uint64_t>(at), 10), bytes_at(static_cast<uint64_t>(50 + at), 10)},
          "it");
    };
    b.put(0, 0, TensorSource::cat(0, {same(0), same(10), same(20)}));
  });
  ASSERT_EQ(plan.items().size(), 1u);
  EXPECT_EQ(plan.items()[0].source.row_bytes, 30u);
  EXPECT_EQ(plan.operands(), (std::vector<Rows>{{0, 0, 30}, {0, 50, 30}}));
  EXPECT_NO_THROW(plan.validate(kInputs));
  // Not where the texts differ, nor with what is merely copied.
  const CopyPlan apart = plan_of(12, [](PlanBuilder& b) {
    const auto same = [](uint64_t at, const char* what) {
      return TensorSource::same({bytes_at(at, 4), bytes_at(50 + at, 4)}, what);
    };
    b.put(0, 0, TensorSource::cat(0, {same(0, "a"), same(4, "b"), bytes_at(8, 4)}));
  });
  ASSERT_EQ(apart.items().size(), 3u);
  EXPECT_EQ(apart.texts(), (std::vector<std::string>{"a", "b"}));
}

TEST(PlanBuilder, MergesZerosAndReadsNothingForThem) {
  const auto zeros = [](int64_t count) { return TensorSource::zeros(DType::float16, {count}); };
  const auto stored = TensorSource::stored({0, 0, 20}, DType::float16, {10});
  const CopyPlan plan = plan_of(240, [&](PlanBuilder& b) {
    b.put(0, 0, TensorSource::cat(0, {zeros(3), zeros(0), zeros(7), stored, zeros(10)}));
    b.put(0, 60,
          TensorSource::cat(0, {zeros(5).to(DType::float32), stored.to(DType::float32),
                                zeros(30).to(DType::float32)}));
  });
  EXPECT_NO_THROW(plan.validate(kInputs));
  ASSERT_EQ(plan.items().size(), 6u);
  const auto expect_zeros = [&](size_t i, uint64_t dst, uint64_t size) {
    EXPECT_EQ(plan.items()[i].op, Op::zeros);
    EXPECT_EQ(plan.items()[i].dst, dst);
    EXPECT_EQ(plan.items()[i].dst_size(), size);
  };
  expect_zeros(0, 0, 20);
  EXPECT_EQ(plan.items()[1].op, Op::copy);
  expect_zeros(2, 40, 20);
  expect_zeros(3, 60, 20);
  EXPECT_EQ(plan.items()[4].op, Op::cast);
  expect_zeros(5, 120, 120);
  EXPECT_EQ(plan.bytes_read(), 40u);
  EXPECT_EQ(plan.bytes_written(), 240u);
}

TEST(CopyPlan, LooksForGapsAroundZerosAndNeedsNoInputForThem) {
  const auto plan_with = [](int64_t count, uint64_t size) {
    return plan_of(size, [&](PlanBuilder& b) {
      b.put(0, 0, TensorSource::zeros(DType::float64, {count}));
      b.put_literal(0, 80, "end");
    });
  };
  EXPECT_NO_THROW(plan_with(10, 83).validate({}));
  EXPECT_ERROR(plan_with(9, 83).validate({}), InconsistentError, "at 72: bytes that nothing");
  EXPECT_ERROR(plan_with(11, 83).validate({}), InconsistentError, "at 80: bytes that are writ");
  EXPECT_ERROR(plan_with(10, 82).validate({}), InconsistentError, "is written beyond its end");
}

// Ten rows of 5 elements of file 0 and 3 of another, which are `apart` elements apart.
TensorSource columns(DType dtype, FileId file, uint64_t offset, int64_t apart) {
  const uint64_t element = size_of(dtype);
  const uint64_t size = static_cast<uint64_t>(9 * (3 + apart) + 3) * element;
  return TensorSource::cat(
      1, {TensorSource::stored({0, 10, 50 * element}, dtype, {10, 5}),
          TensorSource::stored({file, offset, size}, dtype, {10, 3}, {3 + apart, 1})});
}

TEST(PlanBuilder, PutsRowsSideBySideAsOneItem) {
  const CopyPlan plan = plan_of(80 + 4 * 80, [](PlanBuilder& b) {
    b.put(0, 0, columns(DType::uint8, 1, 7, 0));
    b.put(0, 80, columns(DType::uint8, 0, 7, 4).to(DType::float32));
  });
  ASSERT_EQ(plan.items().size(), 2u);
  for (const CopyItem& item : plan.items()) {
    EXPECT_EQ(item.op, Op::interleave);
    EXPECT_EQ(item.rows, 10u);
    EXPECT_EQ(item.source.row_bytes, 8u);
  }
  EXPECT_EQ(plan.items()[0].dst_size(), 80u);
  EXPECT_EQ(plan.items()[1].dst_size(), 320u);
  EXPECT_EQ(plan.operands(),
            (std::vector<Rows>{{0, 10, 5, 5}, {1, 7, 3, 3}, {0, 10, 5, 5}, {0, 7, 3, 7}}));
  EXPECT_EQ(plan.bytes_read(), 160u);
  EXPECT_NO_THROW(plan.validate({{"in.pt", 100}, {"other.pt", 37}}));
}

TEST(CopyPlan, RefusesColumnsOutsideTheirInput) {
  const auto plan_with = [](DType dtype, FileId file, uint64_t offset, int64_t apart) {
    return plan_of(80 * size_of(dtype),
                   [&](PlanBuilder& b) { b.put(0, 0, columns(dtype, file, offset, apart)); });
  };
  const std::vector<PlannedInput> inputs{{"in.pt", 60}, {"other.pt", 37}};
  EXPECT_NO_THROW(plan_with(DType::uint8, 1, 7, 0).validate(inputs));
  EXPECT_ERROR(plan_with(DType::uint8, 1, 8, 0).validate(inputs), InconsistentError,
               "other.pt: at 8: reads up to byte 38 of 37");
  EXPECT_ERROR(plan_with(DType::uint8, 1, 0, 1).validate(inputs), InconsistentError,
               "other.pt: at 0: reads up to byte 39 of 37");
  EXPECT_ERROR(plan_with(DType::bfloat16, 1, 0, 0).validate(inputs), InconsistentError,
               "in.pt: at 10: reads up to byte 110 of 60");
  EXPECT_ERROR(plan_with(DType::uint8, 2, 0, 0).validate(inputs), InconsistentError,
               "out: at 0: reads an unknown file");
  EXPECT_ERROR(plan_with(DType::uint8, 1, 7, 0).validate({}), InconsistentError,
               "out: at 0: reads an unknown file");
}

TEST(CopyPlan, RefusesInterleavedRowsThatLeaveAGapOrOverlap) {
  const auto plan_at = [](uint64_t second, uint64_t size) {
    return plan_of(size, [&](PlanBuilder& b) {
      b.put(0, 0, columns(DType::uint8, 1, 7, 0));
      b.put(0, second, columns(DType::uint8, 1, 7, 0));
    });
  };
  const std::vector<PlannedInput> inputs{{"in.pt", 60}, {"other.pt", 37}};
  EXPECT_NO_THROW(plan_at(80, 160).validate(inputs));
  EXPECT_ERROR(plan_at(81, 161).validate(inputs), InconsistentError, "at 80: bytes that nothing");
  EXPECT_ERROR(plan_at(79, 159).validate(inputs), InconsistentError, "at 79: bytes that are writ");
  EXPECT_ERROR(plan_at(80, 159).validate(inputs), InconsistentError, "is written beyond its end");
}

TEST(CopyPlan, RefusesOperandsOutsideTheirInput) {
  const auto same_of = [](TensorSource other) {
    return plan_of(10, [&](PlanBuilder& b) {
      b.put(0, 0, TensorSource::same({bytes_at(0, 10), bytes_at(10, 10), std::move(other)}, "it"));
    });
  };
  EXPECT_NO_THROW(same_of(bytes_at(90, 10)).validate(kInputs));
  EXPECT_ERROR(same_of(bytes_at(91, 10)).validate(kInputs), InconsistentError,
               "in.pt: at 91: reads up to byte 101 of 100");
  EXPECT_ERROR(same_of(TensorSource::stored({1, 0, 10}, DType::uint8, {10})).validate(kInputs),
               InconsistentError, "out: at 0: reads an unknown file");
}

// A matrix again and again, each time as a run of two rows.
TensorSource repeated(int64_t rows) {
  return TensorSource::stored({0, 0, 5}, DType::uint8, {rows, 2, 2}, {0, 3, 1});
}

TEST(PlanBuilder, RefusesTheSameBytesInMillionsOfPieces) {
  const int64_t kMany = 1 << 17;
  const CopyPlan plan = plan_of(kMany * 4, [&](PlanBuilder& b) { b.put(0, 0, repeated(kMany)); });
  EXPECT_EQ(plan.items().size(), static_cast<size_t>(kMany));
  EXPECT_NO_THROW(plan.validate(kInputs));
  EXPECT_ERROR(repeated(kMany + 1).lower([](const SourceRun&) {}), UnsupportedError,
               "repeats its elements in 131073 pieces");
  PlanBuilder builder;
  builder.add_output("out", 0);
  for (int i = 0; i < 16; ++i) builder.put(0, 0, repeated(kMany));
  EXPECT_ERROR(builder.put(0, 0, repeated(1)), UnsupportedError,
               "the tensors lie in too many pieces of the same bytes");
}

// Each of the parts alone may lie so.
TEST(TensorSource, RefusesPartsThatTogetherRepeatTheSameBytes) {
  const auto emit = [](const SourceRun&) {};
  const auto refused = [&](const TensorSource& tensor) {
    EXPECT_ERROR(tensor.lower(emit), UnsupportedError,
                 "the tensors lie in too many pieces of the same bytes");
  };
  const std::vector<TensorSource> few(8, repeated(1 << 17));
  const std::vector<TensorSource> many(9, repeated(1 << 17));
  EXPECT_NO_THROW(TensorSource::same(few, "parts").lower(emit));
  refused(TensorSource::same(many, "parts"));
  EXPECT_NO_THROW(TensorSource::cat(1, few).lower(emit));
  refused(TensorSource::cat(1, many));
  refused(TensorSource::same({TensorSource::cat(0, many), TensorSource::cat(0, many)}, "parts"));
  const TensorSource floats =
      TensorSource::stored({0, 0, 20}, DType::float32, {1 << 17, 2, 2}, {0, 3, 1});
  EXPECT_NO_THROW(TensorSource::sum(std::vector<TensorSource>(8, floats)).lower(emit));
  refused(TensorSource::sum(std::vector<TensorSource>(9, floats)));
  // Bytes of their own.
  std::vector<TensorSource> whole;
  for (uint64_t i = 0; i < 16; ++i) {
    whole.push_back(
        TensorSource::stored({0, i << 22, 1 << 22}, DType::uint8, {1 << 17, 4, 2}, {32, 9, 1}));
  }
  EXPECT_NO_THROW(TensorSource::same(whole, "parts").lower(emit));
}

TEST(TensorSource, HasEachElementOnceWithoutRepeats) {
  const TensorSource once = repeated(int64_t{1} << 40).without_repeats();
  EXPECT_EQ(once.shape(), (Shape{1, 2, 2}));
  std::vector<Rows> rows;
  once.lower([&](const SourceRun& run) { rows.push_back(run.source); });
  EXPECT_EQ(rows, (std::vector<Rows>{{.offset = 0, .row_bytes = 2, .stride = 3}}));
  EXPECT_EQ(bytes_at(3, 4).without_repeats().shape(), Shape{4});
  EXPECT_EQ(repeated(3).flatten().without_repeats().shape(), Shape{12});
}

}  // namespace
}  // namespace dsckpt
