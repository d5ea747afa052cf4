#include "io/block_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/plan_tools.h"

namespace dsckpt {
namespace {

using test::kMiB;

SharedBlock block_of(size_t size, uint8_t value = 1) {
  auto block = std::make_shared<CachedBlock>(size);
  for (std::byte& byte : block->bytes().first(std::min<size_t>(size, 16))) byte = std::byte{value};
  return block;
}

SharedBlock never() {
  ADD_FAILURE() << "made again";
  return block_of(1);
}

bool is_there(BlockCache& cache, uint64_t index) {
  bool made = false;
  cache.get(index, [&] {
    made = true;
    return block_of(1);
  });
  return !made;
}

TEST(BlockCache, MakesABlockOnce) {
  BlockCache cache;
  const SharedBlock first = cache.get(7, [] { return block_of(100, 9); });
  EXPECT_EQ(first->bytes()[0], std::byte{9});
  EXPECT_EQ(cache.get(7, never), first);
  EXPECT_NE(cache.get(8, [] { return block_of(100); }), first);
}

TEST(BlockCache, FindsWhatIsThere) {
  BlockCache cache;
  const size_t before = BlockCache::held();
  EXPECT_EQ(cache.find(7), nullptr);
  const SharedBlock made = cache.get(7, [&] {
    EXPECT_EQ(cache.find(7), nullptr);  // not yet
    return block_of(100);
  });
  EXPECT_EQ(cache.find(7), made);
  EXPECT_EQ(BlockCache::held(), before + 100);
}

TEST(BlockCache, DropsFirstWhatIsUsedOnce) {
  BlockCache cache;
  cache.get(0, [] { return block_of(kMiB); });
  for (uint64_t i = 1; i < 400; ++i) {
    cache.get(
        i, [] { return block_of(kMiB); }, true);
  }
  EXPECT_TRUE(is_there(cache, 0));
}

TEST(BlockCache, KeepsTheBlocksOfFilesApart) {
  BlockCache a;
  BlockCache b;
  const SharedBlock of_a = a.get(0, [] { return block_of(10); });
  const SharedBlock of_b = b.get(0, [] { return block_of(10); });
  EXPECT_NE(of_a, of_b);
  EXPECT_EQ(a.get(0, never), of_a);
  EXPECT_EQ(b.get(0, never), of_b);
}

// The references in the cache besides its owner's.
size_t cached_bytes(const std::vector<std::weak_ptr<const CachedBlock>>& blocks) {
  size_t sum = 0;
  for (const auto& block : blocks) {
    if (const SharedBlock there = block.lock()) sum += there->bytes().size();
  }
  return sum;
}

TEST(BlockCache, HoldsSixteenMiBAndFourForEachFile) {
  BlockCache cache;
  std::vector<std::weak_ptr<const CachedBlock>> blocks;
  size_t most = 0;
  for (uint64_t i = 0; i < 200; ++i) {
    blocks.push_back(cache.get(i, [] { return block_of(kMiB); }));
    most = std::max(most, cached_bytes(blocks));
  }
  EXPECT_EQ(most, 20 * kMiB);
  // Only the blocks used last are there.
  for (uint64_t i = 0; i < 200; ++i) EXPECT_EQ(blocks[i].expired(), i < 180) << i;

  std::vector<std::unique_ptr<BlockCache>> files;
  std::vector<std::weak_ptr<const CachedBlock>> others;
  for (size_t file = 0; file < 100; ++file) {
    files.push_back(std::make_unique<BlockCache>());
    for (uint64_t i = 0; i < 8; ++i) {
      others.push_back(files.back()->get(i, [] { return block_of(kMiB); }));
    }
  }
  EXPECT_EQ(cached_bytes(others), 256 * kMiB);
}

TEST(BlockCache, KeepsWhatIsUsed) {
  BlockCache cache;
  const SharedBlock used = cache.get(0, [] { return block_of(kMiB); });
  for (uint64_t i = 1; i < 100; ++i) {
    cache.get(i, [] { return block_of(kMiB); });
    ASSERT_EQ(cache.get(0, never), used);
  }
}

TEST(BlockCache, ForgetsTheBlocksOfAFileThatGoes) {
  std::weak_ptr<const CachedBlock> block;
  BlockCache other;
  const SharedBlock kept = other.get(0, [] { return block_of(10); });
  {
    BlockCache cache;
    block = cache.get(0, [] { return block_of(10); });
    EXPECT_FALSE(block.expired());
  }
  EXPECT_TRUE(block.expired());
  EXPECT_EQ(other.get(0, never), kept);
  // Nor does the next file find them.
  BlockCache next;
  EXPECT_FALSE(is_there(next, 0));
}

// Lets a maker wait until others have had time to want the same block.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

constexpr int kThreads = 8;

// Runs `body` in threads of which one makes the block and waits in the gate for the others.
template <typename Body>
void in_threads(std::atomic<int>& began, Gate& gate, Body&& body) {
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      ++began;
      body();
    });
  }
  while (began < kThreads) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  gate.open();
  for (std::thread& thread : threads) thread.join();
}

TEST(BlockCache, MakesABlockOnceForManyThreads) {
  BlockCache cache;
  Gate gate;
  std::atomic<int> began{0};
  std::atomic<int> made{0};
  std::atomic<int> got{0};
  in_threads(began, gate, [&] {
    const SharedBlock block = cache.get(5, [&] {
      ++made;
      gate.wait();
      return block_of(kMiB, 3);
    });
    if (block->bytes()[0] == std::byte{3}) ++got;
  });
  EXPECT_EQ(made, 1);
  EXPECT_EQ(got, kThreads);
}

TEST(BlockCache, ThrowsToAllWhoWaitAndThenTriesAgain) {
  BlockCache cache;
  Gate gate;
  std::atomic<int> began{0};
  std::atomic<int> made{0};
  std::atomic<int> failed{0};
  in_threads(began, gate, [&] {
    try {
      cache.get(5, [&]() -> SharedBlock {
        ++made;
        gate.wait();
        throw std::runtime_error("damaged");
      });
    } catch (const std::runtime_error& error) {
      if (error.what() == std::string("damaged")) ++failed;
    }
  });
  EXPECT_EQ(failed, kThreads);
  // A thread that came late tried by itself.
  EXPECT_LT(made, kThreads);
  EXPECT_FALSE(is_there(cache, 5));
  EXPECT_TRUE(is_there(cache, 5));
}

TEST(BlockCache, MakesOtherBlocksMeanwhile) {
  BlockCache cache;
  Gate gate;
  std::thread slow([&] {
    cache.get(0, [&] {
      gate.wait();
      return block_of(10);
    });
  });
  EXPECT_FALSE(is_there(cache, 1));
  EXPECT_TRUE(is_there(cache, 1));
  gate.open();
  slow.join();
}

TEST(BlockCache, StaysWithinItsBoundsWithManyThreadsAndErrors) {
  BlockCache cache;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 2000; ++i) {
        const uint64_t index = (i * (2 * t + 1)) % 61;
        try {
          const SharedBlock block = cache.get(index, [&]() -> SharedBlock {
            if (i % 7 == 0) throw std::runtime_error("now and then");
            return block_of(kMiB, static_cast<uint8_t>(index));
          });
          if (block->bytes()[15] != static_cast<std::byte>(index)) ++wrong;
        } catch (const std::runtime_error&) {
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  int there = 0;
  for (uint64_t index = 0; index < 61; ++index) {
    try {
      cache.get(index, []() -> SharedBlock { throw std::runtime_error("not there"); });
      ++there;
    } catch (const std::runtime_error&) {
    }
  }
  EXPECT_EQ(there, 20);
}

}  // namespace
}  // namespace dsckpt
