// Reading ahead of objects that are only computed: order, bounds, errors, and nothing twice.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "bucket/read_ahead.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

constexpr uint64_t kReadMiB = 1 << 20;

// The content of an object: random bytes, that repeat after a prime number of them.
std::vector<std::byte> content(uint32_t object, uint64_t offset, size_t size) {
  constexpr size_t kPeriod = 1'048'583;
  static const std::vector<std::byte> random = [] {
    std::mt19937 next(1);
    std::vector<std::byte> bytes(kPeriod);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(next());
    return bytes;
  }();
  std::vector<std::byte> bytes;
  bytes.reserve(size);
  for (size_t at = (offset + object * 40503U) % kPeriod; bytes.size() < size; at = 0) {
    const auto first = random.begin() + static_cast<std::ptrdiff_t>(at);
    bytes.insert(bytes.end(), first,
                 first + static_cast<std::ptrdiff_t>(std::min(kPeriod - at, size - bytes.size())));
  }
  return bytes;
}

// Notes what is fetched.
class Computed : public NumberedObjects {
 public:
  void fetch(uint32_t object, uint64_t offset, std::span<std::byte> out,
             const std::atomic<bool>& given_up) override {
    {
      const std::lock_guard lock(mutex);
      fetched.push_back({object, offset, out.size()});
      most_at_once = std::max(most_at_once, ++at_once);
      if (ahead != nullptr) most_held = std::max(most_held, ahead->held());
    }
    while (hangs && !given_up) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(pause);
    std::ranges::copy(content(object, offset, out.size()), out.begin());
    {
      const std::lock_guard lock(mutex);
      --at_once;
    }
    if (given_up) throw InterruptedError();
    const uint64_t bad = bad_byte;
    if (object == 0 && offset <= bad && bad < offset + out.size()) throw IoError({}, "is bad", 0);
  }
  Kept kept(uint32_t object, uint64_t offset, uint64_t size) override {
    if (block == nullptr || object != 0 || block_begin >= offset + size ||
        block_begin + block->bytes().size() <= offset) {
      return {};
    }
    return {block, block_begin};
  }

  std::mutex mutex;
  std::vector<Extent> fetched = {};
  size_t at_once = 0;
  size_t most_at_once = 0;
  const ReadAhead* ahead = nullptr;
  uint64_t most_held = 0;
  std::atomic<bool> hangs{false};
  std::chrono::microseconds pause{0};
  uint64_t bad_byte = ~uint64_t{0};
  SharedBlock block = {};
  uint64_t block_begin = 0;
};

FarSteps steps_of(const std::vector<std::vector<Extent>>& steps, uint64_t most = 0) {
  FarSteps far{.most = most};
  for (const auto& step : steps) {
    for (const Extent& extent : step) far.bytes += extent.size;
  }
  far.next = [steps, at = size_t{0}](FarStep& step) mutable {
    if (at == steps.size()) return false;
    step = {.number = at, .extents = steps[at]};
    ++at;
    return true;
  };
  return far;
}

// Reads one extent as a run does: false if some of it was not read ahead.
bool read(ReadAhead& ahead, const Extent& extent) {
  std::vector<std::byte> bytes(extent.size);
  for (uint64_t done = 0; done < extent.size;) {
    uint64_t apart = 0;
    const uint64_t some =
        ahead.copy(extent.file, extent.offset + done, std::span(bytes).subspan(done), &apart);
    if (some == 0) return false;
    done += some;
  }
  // Not EXPECT_EQ, which shows all bytes.
  EXPECT_TRUE(bytes == content(extent.file, extent.offset, bytes.size()))
      << extent.size << " bytes at " << extent.offset << " of " << extent.file;
  return true;
}

void run(ReadAhead& ahead, FarReadAhead& run, const std::vector<std::vector<Extent>>& steps,
         unsigned threads) {
  std::atomic<size_t> next{0};
  std::vector<std::thread> workers;
  for (unsigned i = 0; i < threads; ++i) {
    workers.emplace_back([&] {
      for (size_t step; (step = next++) < steps.size();) {
        run.begin(step);
        for (const Extent& extent : steps[step]) EXPECT_TRUE(read(ahead, extent));
        run.end(step);
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
}

// Rows of a table of `files`: each step takes `bytes` of each of them, one behind the other.
std::vector<std::vector<Extent>> in_turns(uint32_t files, uint64_t bytes, size_t steps) {
  std::vector<std::vector<Extent>> all(steps);
  for (size_t step = 0; step < steps; ++step) {
    for (uint32_t file = 0; file < files; ++file) {
      all[step].push_back({file, 100 + step * bytes, bytes});
    }
  }
  return all;
}

void expect_each_once(std::vector<Extent> fetched, const std::vector<std::vector<Extent>>& steps) {
  const auto by_place = [](const Extent& a, const Extent& b) {
    return std::pair(a.file, a.offset) < std::pair(b.file, b.offset);
  };
  std::vector<Extent> wanted;
  for (const auto& step : steps) wanted.insert(wanted.end(), step.begin(), step.end());
  std::vector<Extent> joined[2];
  for (std::vector<Extent>* all : {&fetched, &wanted}) {
    std::sort(all->begin(), all->end(), by_place);
    std::vector<Extent>& into = joined[all == &wanted];
    for (const Extent& extent : *all) {
      if (!into.empty() && into.back().file == extent.file && into.back().end() == extent.offset) {
        into.back().size += extent.size;
      } else {
        into.push_back(extent);
      }
    }
  }
  EXPECT_EQ(joined[0], joined[1]);
}

TEST(ReadAhead, JoinsWhatStepsTakeAndReadsItInTheirOrder) {
  Computed objects;
  ReadAhead ahead(objects, 1, 40);
  const auto steps = in_turns(4, kReadMiB / 2, 96);
  const auto token = ahead.start(steps_of(steps), 4);
  run(ahead, *token, steps, 2);
  EXPECT_EQ(ahead.held(), 0u);
  expect_each_once(objects.fetched, steps);
  uint64_t last = 0;
  size_t long_ones = 0;
  for (const Extent& request : objects.fetched) {
    EXPECT_LE(request.size, ReadAhead::kLongestRequest);
    long_ones += request.size > 7 * kReadMiB ? 1 : 0;
    // Files that are read in turns stay close to each other.
    EXPECT_LE(last, request.offset + 2 * ReadAhead::kLongestRequest);
    last = request.offset;
  }
  // 48 MiB a file in 8 MiB each, but for the end.
  EXPECT_GE(long_ones, 10u);
  EXPECT_LE(objects.fetched.size(), 128u);
}

TEST(ReadAhead, JoinsNeighboursThatAreNeededInAnyOrder) {
  Computed objects;
  ReadAhead ahead(objects, 1, 40);
  std::vector<std::vector<Extent>> steps;
  for (const uint64_t place : std::initializer_list<uint64_t>{5, 2, 3, 0, 4, 1, 6, 7}) {
    steps.push_back({{0, place * 100'000, 100'000}});
  }
  // Little that is not needed is read, too; much is not.
  steps.push_back({{0, 800'000 + ReadAhead::kLongestGap, 10}});
  steps.push_back({{0, 1'000'000, 10}});
  const auto token = ahead.start(steps_of(steps), 4);
  run(ahead, *token, steps, 1);
  ASSERT_EQ(objects.fetched.size(), 2u);
  EXPECT_EQ(objects.fetched[0], (Extent{0, 0, 800'010 + ReadAhead::kLongestGap}));
  EXPECT_EQ(objects.fetched[1], (Extent{0, 1'000'000, 10}));
}

TEST(ReadAhead, KeepsRequestsAndMemoryBounded) {
  for (const uint32_t files : {1u, 4u, 64u, 512u}) {
    Computed objects;
    objects.pause = std::chrono::microseconds(500);
    ReadAhead ahead(objects, 6, 4);
    objects.ahead = &ahead;
    const auto steps = in_turns(files, 256 * 1024 / files, 256);
    const auto token = ahead.start(steps_of(steps), files);
    run(ahead, *token, steps, 1);
    expect_each_once(objects.fetched, steps);
    EXPECT_LE(objects.most_at_once, 6u + 1);
    EXPECT_LE(objects.most_held, 5 * ReadAhead::kLongestRequest) << files;
    EXPECT_EQ(ahead.held(), 0u);
  }
}

TEST(ReadAhead, GoesOnWhereStepsAreTakenOutOfOrder) {
  Computed objects;
  ReadAhead ahead(objects, 2, 1);
  const auto steps = in_turns(2, kReadMiB, 40);
  const auto token = ahead.start(steps_of(steps), 4);
  for (size_t step = 0; step < steps.size(); ++step) token->begin(step);
  for (size_t step = steps.size(); step-- > 0;) {
    for (const Extent& extent : steps[step]) EXPECT_TRUE(read(ahead, extent));
  }
  for (size_t step = 0; step < steps.size(); ++step) token->end(step);
  EXPECT_EQ(ahead.held(), 0u);
  expect_each_once(objects.fetched, steps);
}

TEST(ReadAhead, IsNoFurtherAheadThanItMay) {
  Computed objects;
  ReadAhead ahead(objects, 8, 16);
  const auto steps = in_turns(1, kReadMiB, 64);
  const auto token = ahead.start(steps_of(steps, 4 * kReadMiB), 1);
  token->begin(0);
  EXPECT_TRUE(read(ahead, steps[0][0]));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_LE(ahead.held(), 4 * kReadMiB);
}

TEST(ReadAhead, FailsWhereTheBytesAreNeeded) {
  Computed objects;
  objects.bad_byte = 20 * kReadMiB;
  ReadAhead ahead(objects, 4, 8);
  const auto steps = in_turns(1, kReadMiB, 40);
  const auto token = ahead.start(steps_of(steps), 4);
  size_t failed = 0;
  for (size_t step = 0; step < steps.size(); ++step) {
    token->begin(step);
    try {
      EXPECT_TRUE(read(ahead, steps[step][0]));
    } catch (const IoError&) {
      ++failed;
    }
    token->end(step);
  }
  EXPECT_GE(failed, 1u);  // all steps of that request
  EXPECT_LE(failed, 8u);
  EXPECT_EQ(ahead.held(), 0u);
}

TEST(ReadAhead, SaysNothingOfWhatNobodyNeeds) {
  Computed objects;
  objects.bad_byte = 6 * kReadMiB;
  ReadAhead ahead(objects, 4, 8);
  const auto steps = in_turns(1, kReadMiB, 40);
  auto token = ahead.start(steps_of(steps), 4);
  token->begin(0);
  EXPECT_TRUE(read(ahead, steps[0][0]));
  token->end(0);
  token = nullptr;
  uint64_t apart = 0;
  std::vector<std::byte> out(10);
  EXPECT_EQ(ahead.copy(0, 6 * kReadMiB, out, &apart), 0u);
  EXPECT_EQ(apart, 10u);
}

TEST(ReadAhead, GivesUpAtOnce) {
  Computed objects;
  objects.hangs = true;
  const auto started = std::chrono::steady_clock::now();
  {
    ReadAhead ahead(objects, 4, 8);
    const auto steps = in_turns(2, kReadMiB, 40);
    auto token = ahead.start(steps_of(steps), 4);
    while (true) {
      const std::lock_guard lock(objects.mutex);
      if (objects.at_once == 4) break;
    }
    token = nullptr;
    // Another run goes on.
    objects.hangs = false;
    const auto others = in_turns(1, kReadMiB, 3);
    token = ahead.start(steps_of(others), 1);
    run(ahead, *token, others, 2);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(5));
}

TEST(ReadAhead, TakesWhatIsInMemory) {
  Computed objects;
  auto block = std::make_shared<CachedBlock>(1000);
  std::ranges::copy(content(0, 5000, 1000), block->bytes().begin());
  objects.block = block;
  objects.block_begin = 5000;
  ReadAhead ahead(objects, 4, 8);
  const std::vector<std::vector<Extent>> steps = {{{0, 0, 5500}}, {{0, 5500, 5000}}};
  const auto token = ahead.start(steps_of(steps), 4);
  run(ahead, *token, steps, 1);
  expect_each_once(objects.fetched, {{{0, 0, 5000}}, {{0, 6000, 4500}}});
}

TEST(ReadAhead, FindsOutHowFarItIsToWhatItHas) {
  Computed objects;
  ReadAhead ahead(objects, 1, 8);
  const auto token = ahead.start(steps_of({{{3, 1000, 10}}}), 1);
  token->begin(0);
  std::vector<std::byte> out(100);
  uint64_t apart = 0;
  EXPECT_EQ(ahead.copy(3, 970, out, &apart), 0u);
  EXPECT_EQ(apart, 30u);
  EXPECT_EQ(ahead.copy(3, 1004, out, &apart), 6u);
  EXPECT_EQ(ahead.copy(4, 1004, out, &apart), 0u);
  EXPECT_EQ(apart, 100u);
}

// Two requests become one; the other may be waited for.
TEST(ReadAhead, GivesWhatIsJoinedToAnotherWhileItIsWaitedFor) {
  Computed objects;
  objects.hangs = true;  // the only thread, with the first request
  ReadAhead ahead(objects, 1, 2);
  const std::vector<std::vector<Extent>> steps = {{{1, 0, 13 * kReadMiB}},
                                                  {{0, 0, 100}},
                                                  {{0, 40'000, 100}},
                                                  {{0, 100, 39'900}},
                                                  {{2, 0, 64 * kReadMiB}}};
  const auto token = ahead.start(steps_of(steps), 1);
  token->begin(2);
  bool is_ahead = false;
  std::thread waits([&] { is_ahead = read(ahead, steps[2][0]); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  token->begin(3);
  objects.hangs = false;
  for (const size_t step : {0u, 1u, 3u}) {
    for (const Extent& extent : steps[step]) EXPECT_TRUE(read(ahead, extent));
    token->end(step);
  }
  waits.join();
  EXPECT_TRUE(is_ahead);
}

// Steps of any shape: ranges that overlap, that are read twice, and in any order.
TEST(ReadAhead, GivesWhatIsThere) {
  std::mt19937 random(7);
  for (int round = 0; round < 30; ++round) {
    const auto up_to = [&](uint64_t most) {
      return std::uniform_int_distribution<uint64_t>(0, most)(random);
    };
    std::vector<std::vector<Extent>> steps(1 + up_to(60));
    for (auto& step : steps) {
      step.resize(up_to(6));
      for (Extent& extent : step) {
        extent = {static_cast<uint32_t>(up_to(3)), up_to(3 * kReadMiB),
                  1 + up_to(kReadMiB >> up_to(12))};
      }
    }
    Computed objects;
    ReadAhead ahead(objects, static_cast<unsigned>(1 + up_to(7)),
                    static_cast<unsigned>(1 + up_to(3)));
    const auto token = ahead.start(steps_of(steps, up_to(1) * up_to(4 * kReadMiB)), 4);
    run(ahead, *token, steps, static_cast<unsigned>(1 + up_to(7)));
    EXPECT_EQ(ahead.held(), 0u);
  }
}

}  // namespace
}  // namespace dsckpt
