// A tensor out of boxes that tile it.
#include "checkpoint/boxes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "support/expect_error.h"
#include "support/hand_made.h"

namespace dsckpt {
namespace {

using Floats = std::vector<float>;

struct Box {
  Shape offsets;
  Shape sizes;
};

class Boxes : public testing::Test {
 protected:
  // A tensor of 0, 1, 2, ...
  TensorSource whole(const Shape& shape) {
    const FileId file =
        inputs_.add(made_.write_raw("numbers" + std::to_string(files_++), bytes_of(numel(shape))));
    return TensorSource::stored({file, 0, static_cast<uint64_t>(numel(shape)) * 4}, DType::float32,
                                shape);
  }

  static std::string bytes_of(int64_t count) {
    Floats numbers(static_cast<size_t>(count));
    std::iota(numbers.begin(), numbers.end(), 0.0F);
    return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)};
  }

  static std::vector<TensorBox> cut(const TensorSource& tensor, const std::vector<Box>& boxes) {
    std::vector<TensorBox> made;
    for (const Box& box : boxes) {
      TensorSource value = tensor;
      for (size_t d = 0; d < box.offsets.size(); ++d) {
        value = value.narrow(static_cast<int64_t>(d), box.offsets[d], box.sizes[d]);
      }
      made.push_back({box.offsets, value});
    }
    return made;
  }

  void expect_whole(const Shape& shape, const std::vector<Box>& boxes) {
    const TensorSource tensor = whole(shape);
    const TensorSource joined = join_boxes(DType::float32, shape, cut(tensor, boxes));
    EXPECT_EQ(joined.shape(), shape);
    EXPECT_EQ(test::floats_of(inputs_, joined), test::floats_of(inputs_, tensor));
  }

  test::HandMade made_;
  InputFiles inputs_;
  size_t files_ = 0;
};

TEST_F(Boxes, OfOneRankAndOfRowsInAnyOrder) {
  expect_whole({}, {{{}, {}}});
  expect_whole({4, 3}, {{{0, 0}, {4, 3}}});
  expect_whole({5, 3}, {{{2, 0}, {2, 3}}, {{4, 0}, {1, 3}}, {{0, 0}, {2, 3}}});
}

TEST_F(Boxes, OfGridsInTwoAndThreeDimensions) {
  expect_whole({4, 6}, {{{0, 0}, {2, 3}}, {{0, 3}, {2, 3}}, {{2, 0}, {2, 3}}, {{2, 3}, {2, 3}}});
  std::vector<Box> boxes;
  for (const int64_t a : {0, 1}) {
    for (const int64_t b : {0, 2}) {
      for (const int64_t c : {0, 3})
        boxes.push_back({{a, b, c}, {1, b == 0 ? 2 : 1, c == 0 ? 3 : 2}});
    }
  }
  expect_whole({2, 3, 5}, boxes);
}

TEST_F(Boxes, OfBricksAndOfAPinwheelThatNoCutGoesThrough) {
  expect_whole({4, 5}, {{{0, 0}, {2, 3}}, {{0, 3}, {2, 2}}, {{2, 0}, {2, 1}}, {{2, 1}, {2, 4}}});
  expect_whole({5, 4}, {{{0, 0}, {3, 2}}, {{0, 2}, {2, 2}}, {{3, 0}, {2, 2}}, {{2, 2}, {3, 2}}});
  expect_whole(
      {3, 3},
      {{{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}});
}

TEST_F(Boxes, EmptyOnesCountForNothing) {
  expect_whole({2, 3}, {{{0, 0}, {2, 3}}, {{2, 0}, {0, 3}}, {{0, 0}, {0, 3}}});
  EXPECT_EQ(join_boxes(DType::int64, {0, 3}, {}).shape(), (Shape{0, 3}));
  EXPECT_EQ(join_boxes(DType::int64, {0, 3}, {}).dtype(), DType::int64);
}

TEST_F(Boxes, ThatAreCutAtRandom) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<Box> boxes{{{0, 0, 0}, {5, 4, 6}}};
    for (int cuts = 0; cuts < 6; ++cuts) {
      const size_t which = random() % boxes.size();
      const size_t dim = random() % 3;
      const int64_t size = boxes[which].sizes[dim];
      if (size < 2) continue;
      const int64_t first = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(size - 1));
      Box rest = boxes[which];
      boxes[which].sizes[dim] = first;
      rest.offsets[dim] += first;
      rest.sizes[dim] -= first;
      boxes.push_back(rest);
    }
    std::shuffle(boxes.begin(), boxes.end(), random);
    expect_whole({5, 4, 6}, boxes);
    // One less leaves a hole, whichever it is.
    boxes.pop_back();
    const TensorSource tensor = whole({5, 4, 6});
    EXPECT_ERROR(join_boxes(DType::float32, {5, 4, 6}, cut(tensor, boxes)), InconsistentError,
                 "no chunk has the elements");
  }
}

TEST_F(Boxes, HolesOverlapsAndWhatReachesOutAreNamed) {
  const TensorSource tensor = whole({9, 9});
  const auto join = [&](const Shape& shape, const std::vector<Box>& boxes) {
    return join_boxes(DType::float32, shape, cut(tensor, boxes));
  };
  EXPECT_ERROR(join({4, 6}, {{{0, 0}, {4, 3}}, {{0, 4}, {4, 2}}}), InconsistentError,
               "no chunk has the elements [4, 1] at [0, 3]");
  EXPECT_ERROR(join({4, 6}, {{{0, 0}, {2, 6}}}), InconsistentError,
               "no chunk has the elements [2, 6] at [2, 0]");
  EXPECT_ERROR(join({4, 6}, {}), InconsistentError, "no chunk has the elements [4, 6] at [0, 0]");
  EXPECT_ERROR(join({4, 6}, {{{0, 0}, {3, 6}}, {{2, 0}, {2, 6}}}), InconsistentError,
               "the chunks of [3, 6] at [0, 0] and [2, 6] at [2, 0] overlap");
  EXPECT_ERROR(join({4, 6}, {{{0, 0}, {5, 6}}}), InconsistentError,
               "the chunk of [5, 6] at [0, 0] reaches out of the tensor");
}

}  // namespace
}  // namespace dsckpt
