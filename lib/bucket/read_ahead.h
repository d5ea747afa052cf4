// ReadAhead: reads ranges of objects before they are needed.
//
// A run announces its reads, in their order (FarSteps). Neighbouring ranges of an object become one
// request of up to 8 MiB, even if many steps use its parts. So as many requests run as the store
// takes at once, and no byte is requested twice. The requests run in threads of their own.
//
// Memory for running requests, and for ranges that have come but are not used yet, is at most the
// given number of 8 MiB buffers. With all blocks of the BlockCache it is at most kMostMemory.
// Requests follow the order of the run, each taking the ranges needed within a part of that order.
// So the next step's ranges come before the room is full, however many objects they are in. Steps
// may end out of order. The waiting thread then reads them itself: at worst 8 MiB more for each
// thread of the run. Requests become shorter towards the end of a run, so that the last ones end
// together. The first ones are short, so that they do not.
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

// The numbered objects that it reads. Any thread.
class NumberedObjects {
 public:
  virtual ~NumberedObjects() = default;
  // Fills `out` from `offset`. Throws IoError, and InterruptedError soon after `given_up` is set.
  virtual void fetch(uint32_t object, uint64_t offset, std::span<std::byte> out,
                     const std::atomic<bool>& given_up) = 0;
  // The first cached block that has any of [offset, offset + size).
  struct Kept {
    SharedBlock block = {};  // nullptr: there is none
    uint64_t begin = 0;      // in the object
  };
  virtual Kept kept(uint32_t object, uint64_t offset, uint64_t size) = 0;
};

class ReadAhead {
 public:
  static constexpr uint64_t kLongestRequest = uint64_t{8} << 20;
  // The longest unneeded gap between two ranges that is read with them: a further request takes
  // more time.
  static constexpr uint64_t kLongestGap = 16 << 10;
  static constexpr uint64_t kMostMemory = uint64_t{512} << 20;

  // Runs `requests` at once, with room for `buffers` of kLongestRequest. `objects` must outlive it.
  ReadAhead(NumberedObjects& objects, unsigned requests, unsigned buffers);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Starts to read ahead the given steps, whose extents have the numbers of their objects. Earlier
  // runs are served first. `objects` is the number of objects. The result must not outlive this.
  // Throws IoError without threads.
  std::unique_ptr<FarReadAhead> start(FarSteps steps, uint64_t objects);

  // Copies bytes of an announced range, once it has come, from `offset` on; returns their number.
  // It is 0 if no run has announced the first byte, nor any of the first `*apart` bytes. Throws the
  // errors of reading them. Any thread.
  uint64_t copy(uint32_t object, uint64_t offset, std::span<std::byte> out, uint64_t* apart);

  // The bytes of running requests, and of ranges that are kept.
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
  // The first waiting request of a run that will not grow any more.
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

  mutable std::mutex mutex_;         // guards what follows
  std::condition_variable changed_;  // there is something to read, it has come, or there is room
  std::list<std::shared_ptr<Run>> runs_;
  std::atomic<size_t> running_{0};  // runs_.size()
  uint64_t held_ = 0;
  bool stopped_ = false;
  std::vector<pthread_t> threads_;
};

}  // namespace dsckpt
