// ReadAhead: ranges of objects that are read before they are needed.
//
// A run says what it will read, in its order (FarSteps). Ranges that follow each other in an object
// become one request of up to 8 MiB, though many steps take their parts of it; so many requests are
// under way as the store takes at once, and no byte is asked for twice. Threads of its own do it.
//
// Memory: what is under way, and what has come and is not yet used, are at most the given number of
// 8 MiB, and with all blocks of the BlockCache at most kMostMemory. A request takes what is needed
// within a part of that, in the order of the run: so what the next step waits for is there before
// the room is full, however many objects it is of. If it is not, because steps end out of their
// order, say, who waits reads it: 8 MiB more a thread of the run, at worst. Requests become shorter
// towards the end of a run, so that the last of them end together, and the first ones are short, so
// that they do not.
#pragma once

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "io/block_cache.h"
#include "io/far_files.h"

namespace dsckpt {

// What it reads, by number. Any thread.
class NumberedObjects {
 public:
  virtual ~NumberedObjects() = default;
  // Fills `out` from `offset`. Throws IoError, and InterruptedError soon after `given_up` is set.
  virtual void fetch(uint32_t object, uint64_t offset, std::span<std::byte> out,
                     const std::atomic<bool>& given_up) = 0;
  // The first block that is in memory already and has any of [offset, offset + size).
  struct Kept {
    SharedBlock block = {};  // nullptr: there is none
    uint64_t begin = 0;      // in the object
  };
  virtual Kept kept(uint32_t object, uint64_t offset, uint64_t size) = 0;
};

class ReadAhead {
 public:
  static constexpr uint64_t kLongestRequest = uint64_t{8} << 20;
  // What is not needed between two ranges, if it is no longer than that, is read with them: a
  // request takes more time than it.
  static constexpr uint64_t kLongestGap = 16 << 10;
  static constexpr uint64_t kMostMemory = uint64_t{512} << 20;

  // With `requests` under way, and room for `buffers` of kLongestRequest. `objects` must outlive
  // it.
  ReadAhead(NumberedObjects& objects, unsigned requests, unsigned buffers);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // What is read from now on, extents by the numbers of their objects. Of several runs the first
  // one is read first. `objects`: how many it is of. What this gives must not outlive it. Throws
  // IoError without threads.
  std::unique_ptr<FarReadAhead> start(FarSteps steps, uint64_t objects);

  // Copies what a run has asked for, once it has come, from `offset` on; returns how many bytes.
  // 0: no run has asked for the first byte, and for none of the first `*apart`. Throws what reading
  // them threw. Any thread.
  uint64_t copy(uint32_t object, uint64_t offset, std::span<std::byte> out, uint64_t* apart);

  // Bytes that are under way, and that have come and are kept.
  uint64_t held() const;

 private:
  struct Request;
  struct Run;
  class Steps;

  void begin(Run& run, uint64_t step);
  void end(Run& run, uint64_t step);
  void end(const std::shared_ptr<Run>& run);

  void plan_step(Run& run);
  void plan(Run& run, uint64_t step, uint32_t object, uint64_t offset, uint64_t size);
  void add(Run& run, uint64_t step, uint32_t object, uint64_t offset, uint64_t size);
  std::shared_ptr<Request> new_request(Run& run) const;
  static void join(Run& run, std::shared_ptr<Request> first, std::shared_ptr<Request> second);
  static void merge(Request& request, const std::shared_ptr<Request>& into);
  static std::shared_ptr<Request> what_has(std::shared_ptr<Request> request);
  void use(Run& run, uint64_t step, const std::shared_ptr<Request>& request);
  static bool may_grow(const Run& run, const Request& request);
  void forget(Run& run, Request& request);
  // The first that waits of a run, and will grow no more.
  std::shared_ptr<Request> next_of(Run& run);
  uint64_t room() const;
  bool has_room(const Run& run, const Request& request) const;
  bool is_full();
  std::shared_ptr<Request> take_next();
  void read(Request& request, std::unique_lock<std::mutex>& lock);
  void work();
  void start_threads();

  NumberedObjects& objects_;
  const unsigned requests_;
  const uint64_t most_;  // bytes

  mutable std::mutex mutex_;         // of what follows
  std::condition_variable changed_;  // there is something to read, it has come, or there is room
  std::list<std::shared_ptr<Run>> runs_;
  std::atomic<size_t> running_{0};  // runs_.size()
  uint64_t held_ = 0;
  bool stopped_ = false;
  std::vector<pthread_t> threads_;
};

}  // namespace dsckpt
