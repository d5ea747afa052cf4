#include "base/turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace dsckpt {
namespace {

TEST(Turns, GivesEachNumberToOneThread) {
  constexpr size_t kCount = 10'000;
  Turns turns(kCount);
  std::vector<std::atomic<int>> taken(kCount);
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] { turns.take([&](size_t number) { ++taken[number]; }); });
    }
  }
  EXPECT_TRUE(
      std::all_of(taken.begin(), taken.end(), [](const auto& times) { return times == 1; }));
}

TEST(Turns, AreOverWhenOneFails) {
  Turns turns(10);
  std::vector<size_t> taken;
  const auto take = [&] {
    turns.take([&](size_t number) {
      taken.push_back(number);
      if (number == 2) throw std::runtime_error("three is enough");
    });
  };
  EXPECT_THROW(take(), std::runtime_error);
  take();
  EXPECT_EQ(taken, (std::vector<size_t>{0, 1, 2}));
}

TEST(Turns, OfNothingAreNone) {
  Turns(0).take([](size_t) { FAIL(); });
}

}  // namespace
}  // namespace dsckpt
