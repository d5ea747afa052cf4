#include "bucket/read_ahead.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/threads.h"
#include "dsckpt/error.h"
#include "io/page_buffer.h"

namespace dsckpt {
namespace {

// The shortest request at the beginning and end of a run: the latency is the same for any length.
constexpr uint64_t kShortestRequest = 1 << 20;
// A request may be longer by this much if that saves another request.
constexpr uint64_t kLittle = 64 << 10;
// The reach when there is little memory for reading ahead.
constexpr uint64_t kLeastReach = 256 << 10;
// Longer buffers are mappings of their own, so that their memory returns to the system at once.
constexpr uint64_t kLongestOfHeap = 64 << 10;
// Room for libcurl and a resolver. With the usual 8 MiB, the stacks would take as much of
// --max-memory as the buffers.
constexpr size_t kStack = 1 << 20;
constexpr std::chrono::milliseconds kBetweenLooks{100};

class Buffer {
 public:
  explicit Buffer(uint64_t size) {
    if (size > kLongestOfHeap) {
      pages_.emplace(size);
      bytes_ = pages_->bytes().first(size);
    } else {
      heap_ = std::make_unique_for_overwrite<std::byte[]>(size);
      bytes_ = {heap_.get(), size};
    }
  }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::optional<PageBuffer> pages_;
  std::unique_ptr<std::byte[]> heap_;
  std::span<std::byte> bytes_;
};

}  // namespace

// A request waits, then is under way, then is done: it has its bytes or an error.
struct ReadAhead::Request {
  enum class State : uint8_t { waits, under_way, done };

  uint64_t end() const { return begin + size; }
  // Returns how many of `more` bytes the request may still take.
  uint64_t room_for(uint64_t more) const {
    const uint64_t most = longest + (more <= kLittle ? kLittle : 0);
    return most - std::min(most, size);
  }

  uint32_t object = 0;
  uint64_t begin = 0;
  uint64_t size = 0;      // grows while it waits
  uint64_t longest = 0;   // limit of `size`
  uint64_t position = 0;  // of the first byte, in the order of the run
  State state = State::waits;
  size_t steps = 0;         // unfinished steps that use it
  bool is_dropped = false;  // no longer needed while it was under way
  std::shared_ptr<std::atomic<bool>> given_up = {};
  std::shared_ptr<uint64_t> held = {};  // bytes that the run holds
  std::shared_ptr<Request> into = {};   // the request that this one was merged into
  std::shared_ptr<Buffer> buffer = {};
  std::exception_ptr error = {};
};

struct ReadAhead::Run {
  using Requests = std::map<uint64_t, std::shared_ptr<Request>>;  // by begin; they do not overlap

  FarSteps steps = {};
  bool is_planned = false;                            // to the end
  uint64_t reach = 0;                                 // of a request, in the order of the run
  uint64_t longest = 0;                               // request
  uint64_t position = 0;                              // planned bytes
  uint64_t made = 0;                                  // requests
  uint64_t next_step = 0;                             // the first unplanned step
  std::deque<std::shared_ptr<Request>> waiting = {};  // may hold some that no longer wait
  std::unordered_map<uint32_t, Requests> live = {};   // by object
  std::unordered_map<uint64_t, std::vector<std::shared_ptr<Request>>> used = {};  // by step
  std::shared_ptr<std::atomic<bool>> given_up = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<uint64_t> held = std::make_shared<uint64_t>(0);
};

class ReadAhead::Steps : public FarReadAhead {
 public:
  Steps(ReadAhead& ahead, std::shared_ptr<Run> run) : ahead_(ahead), run_(std::move(run)) {}
  ~Steps() override { ahead_.end(run_); }
  void begin(uint64_t step) override { ahead_.begin(*run_, step); }
  void end(uint64_t step) override { ahead_.end(*run_, step); }

 private:
  ReadAhead& ahead_;
  const std::shared_ptr<Run> run_;
};

ReadAhead::ReadAhead(NumberedObjects& objects, unsigned requests, unsigned buffers)
    : objects_(objects),
      requests_(std::max(requests, 1u)),
      most_(std::max(buffers, 1u) * kLongestRequest) {}

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  for (const pthread_t thread : threads_) ::pthread_join(thread, nullptr);
}

// Callers hold the mutex.
void ReadAhead::start_threads() {
  const auto work = [](void* self) -> void* {
    static_cast<ReadAhead*>(self)->work();
    return nullptr;
  };
  threads_.reserve(requests_);
  const auto [more, failed] =
      dsckpt::start_threads(requests_ - threads_.size(), kStack, work, this);
  threads_.insert(threads_.end(), more.begin(), more.end());
  if (threads_.empty()) throw IoError({}, "cannot start threads", failed);
}

std::unique_ptr<FarReadAhead> ReadAhead::start(FarSteps steps, uint64_t objects) {
  auto run = std::make_shared<Run>();
  const uint64_t room = steps.most == 0 ? this->room() : std::min(steps.most, this->room());
  // The more objects take turns, the fewer bytes of each are needed before the next object's turn.
  // Then memory limits the requests, and running requests need little of it.
  const uint64_t share = room / 4 * 3 * objects / (objects + requests_);
  run->reach = std::max({room / 4, share, kLeastReach});
  run->longest = std::min(run->reach, kLongestRequest - kLittle);
  run->steps = std::move(steps);
  {
    const std::lock_guard lock(mutex_);
    start_threads();
    runs_.push_back(run);
    ++running_;
  }
  changed_.notify_all();
  return std::make_unique<Steps>(*this, std::move(run));
}

uint64_t ReadAhead::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

// A step must be planned before it reads: otherwise its bytes would be requested twice.
void ReadAhead::begin(Run& run, uint64_t step) {
  const std::lock_guard lock(mutex_);
  while (!run.is_planned && run.next_step <= step) plan_step(run);
}

void ReadAhead::end(Run& run, uint64_t step) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = run.used.find(step);
    if (found == run.used.end()) return;
    for (std::shared_ptr<Request>& request : found->second) {
      request = what_has(request);
      if (--request->steps == 0) forget(run, *request);
    }
    run.used.erase(found);
  }
  changed_.notify_all();
}

void ReadAhead::end(const std::shared_ptr<Run>& run) {
  *run->given_up = true;
  {
    const std::lock_guard lock(mutex_);
    runs_.remove(run);
    --running_;
    run->waiting.clear();
    run->used.clear();
    for (auto& [object, requests] : run->live) {
      while (!requests.empty()) {
        const std::shared_ptr<Request> request = requests.begin()->second;
        forget(*run, *request);
      }
    }
    run->steps = {};
  }
  changed_.notify_all();
}

// Callers of the functions below hold the mutex.

void ReadAhead::plan_step(Run& run) {
  FarStep step;
  try {
    run.is_planned = !run.steps.next(step);
    if (!run.is_planned) {
      run.next_step = step.number + 1;
      for (const Extent& extent : step.extents) {
        plan(run, step.number, extent.file, extent.offset, extent.size);
        run.position += extent.size;
      }
    }
  } catch (...) {  // out of memory: unplanned ranges are read when they are needed
    run.is_planned = true;
  }
}

void ReadAhead::plan(Run& run, uint64_t step, uint32_t object, uint64_t offset, uint64_t size) {
  const uint64_t end = offset + size;
  while (offset < end) {
    Run::Requests& live = run.live[object];
    const auto next = live.upper_bound(offset);
    if (next != live.begin() && std::prev(next)->second->end() > offset) {
      const std::shared_ptr<Request> request = std::prev(next)->second;
      use(run, step, request);
      offset = request->end();
      continue;
    }
    const uint64_t limit = next == live.end() ? end : std::min(end, next->first);
    const NumberedObjects::Kept kept = objects_.kept(object, offset, limit - offset);
    const uint64_t until = kept.block == nullptr ? limit : std::max(offset, kept.begin);
    if (until > offset) {
      add(run, step, object, offset, until - offset);
    } else {
      const std::span<const std::byte> bytes = kept.block->bytes();
      auto request = std::make_shared<Request>();
      request->object = object;
      request->begin = offset;
      request->size = std::min(limit, kept.begin + bytes.size()) - offset;
      request->state = Request::State::done;
      request->held = run.held;
      request->buffer = std::make_shared<Buffer>(request->size);
      std::memcpy(request->buffer->bytes().data(), bytes.data() + (offset - kept.begin),
                  request->size);
      held_ += request->size;
      *run.held += request->size;
      live[offset] = request;
      use(run, step, request);
      offset = request->end();
      continue;
    }
    offset = until;
  }
}

// Requests a range that no request covers yet.
void ReadAhead::add(Run& run, uint64_t step, uint32_t object, uint64_t offset, uint64_t size) {
  Run::Requests& live = run.live[object];
  while (size > 0) {
    const auto after = live.upper_bound(offset);
    if (after != live.begin()) {
      const std::shared_ptr<Request> before = std::prev(after)->second;
      const uint64_t gap = offset - before->end();
      const uint64_t room = may_grow(run, *before) ? before->room_for(gap + size) : 0;
      if (gap <= kLongestGap && room > gap) {
        const uint64_t some = std::min(size, room - gap);
        before->size += gap + some;
        use(run, step, before);
        offset += some;
        size -= some;
        if (size == 0 && after != live.end()) join(run, before, after->second);
        continue;
      }
    }
    if (after != live.end()) {
      const std::shared_ptr<Request> behind = after->second;
      const uint64_t more = behind->begin - offset;
      if (more - size <= kLongestGap && may_grow(run, *behind) && behind->room_for(more) >= more) {
        live.erase(after);
        behind->begin = offset;
        behind->size += more;
        live[offset] = behind;
        return use(run, step, behind);
      }
    }
    const std::shared_ptr<Request> request = new_request(run);
    request->object = object;
    request->begin = offset;
    request->size = std::min(size, request->longest);
    live[offset] = request;
    run.waiting.push_back(request);
    use(run, step, request);
    offset += request->size;
    size -= request->size;
  }
}

std::shared_ptr<ReadAhead::Request> ReadAhead::new_request(Run& run) const {
  const uint64_t left = run.steps.bytes - std::min(run.steps.bytes, run.position);
  uint64_t longest = std::min(left / (2 * requests_), run.longest);
  if (run.made < requests_) {
    longest = std::min(longest, (run.made + 1) * run.longest / requests_);
  }
  ++run.made;
  auto request = std::make_shared<Request>();
  request->longest = std::max(longest, std::min(kShortestRequest, run.longest));
  request->position = run.position;
  request->given_up = run.given_up;
  request->held = run.held;
  return request;
}

// Merges two neighbouring requests if that is permitted.
void ReadAhead::join(Run& run, std::shared_ptr<Request> first, std::shared_ptr<Request> second) {
  const uint64_t gap = second->begin - first->end();
  const uint64_t more = gap + second->size;
  if (gap > kLongestGap || !may_grow(run, *first) || !may_grow(run, *second) ||
      first->room_for(more) < more) {
    return;
  }
  Run::Requests& live = run.live[first->object];
  live.erase(second->begin);
  if (second->position < first->position) {  // it waits in the earlier place
    live[first->begin] = second;
    second->begin = first->begin;
    second->size += gap + first->size;
    second->longest = first->longest;
    merge(*first, second);
  } else {
    first->size += more;
    merge(*second, first);
  }
}

void ReadAhead::merge(Request& request, const std::shared_ptr<Request>& into) {
  into->steps += request.steps;
  request.into = into;
  request.state = Request::State::done;
}

// Returns the request that this one was merged into, or itself.
std::shared_ptr<ReadAhead::Request> ReadAhead::what_has(std::shared_ptr<Request> request) {
  while (request->into != nullptr) request = request->into;
  return request;
}

void ReadAhead::use(Run& run, uint64_t step, const std::shared_ptr<Request>& request) {
  std::vector<std::shared_ptr<Request>>& used = run.used[step];
  if (!used.empty() && used.back() == request) return;
  used.push_back(request);
  ++request->steps;
}

bool ReadAhead::may_grow(const Run& run, const Request& request) {
  return !run.is_planned && request.state == Request::State::waits &&
         request.size < request.longest && run.position - request.position < run.reach;
}

// Drops a request that no step needs any more.
void ReadAhead::forget(Run& run, Request& request) {
  switch (request.state) {
    case Request::State::waits:
      request.state = Request::State::done;
      break;
    case Request::State::under_way:
      request.is_dropped = true;
      break;
    case Request::State::done:
      held_ -= request.size;
      *request.held -= request.size;
      break;
  }
  run.live[request.object].erase(request.begin);
}

std::shared_ptr<ReadAhead::Request> ReadAhead::next_of(Run& run) {
  for (;;) {
    while (!run.waiting.empty() && run.waiting.front()->state != Request::State::waits) {
      run.waiting.pop_front();
    }
    if (!run.waiting.empty() && !may_grow(run, *run.waiting.front())) return run.waiting.front();
    if (run.is_planned) return nullptr;
    plan_step(run);
  }
}

// Returns how many bytes may be held.
uint64_t ReadAhead::room() const {
  return std::min(most_, kMostMemory - std::min<uint64_t>(BlockCache::held(), kMostMemory / 2));
}

bool ReadAhead::has_room(const Run& run, const Request& request) const {
  const bool is_much =
      run.steps.most != 0 && *run.held != 0 && *run.held + request.size > run.steps.most;
  return !is_much && (held_ == 0 || held_ + request.size <= room());
}

// Returns whether the next request waits for memory.
bool ReadAhead::is_full() {
  for (const std::shared_ptr<Run>& run : runs_) {
    if (const std::shared_ptr<Request> next = next_of(*run)) return !has_room(*run, *next);
  }
  return false;
}

std::shared_ptr<ReadAhead::Request> ReadAhead::take_next() {
  for (const std::shared_ptr<Run>& run : runs_) {
    const std::shared_ptr<Request> next = next_of(*run);
    if (next == nullptr) continue;
    if (!has_room(*run, *next)) return nullptr;
    run->waiting.pop_front();
    return next;
  }
  return nullptr;
}

void ReadAhead::read(Request& request, std::unique_lock<std::mutex>& lock) {
  request.state = Request::State::under_way;
  held_ += request.size;
  *request.held += request.size;
  lock.unlock();
  std::shared_ptr<Buffer> buffer;
  std::exception_ptr error;
  try {
    buffer = std::make_shared<Buffer>(request.size);
    objects_.fetch(request.object, request.begin, buffer->bytes(), *request.given_up);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  request.state = Request::State::done;
  request.error = error;
  if (request.is_dropped) {
    held_ -= request.size;
    *request.held -= request.size;
  } else {
    request.buffer = std::move(buffer);
  }
  changed_.notify_all();
}

// Callers of the functions below do not hold the mutex.

void ReadAhead::work() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    if (const std::shared_ptr<Request> next = take_next()) {
      read(*next, lock);
    } else if (running_ == 0) {
      changed_.wait(lock);
    } else {
      changed_.wait_for(lock, kBetweenLooks);  // the BlockCache does not tell when it shrinks
    }
  }
}

uint64_t ReadAhead::copy(uint32_t object, uint64_t offset, std::span<std::byte> out,
                         uint64_t* apart) {
  *apart = out.size();
  if (running_ == 0) return 0;
  std::unique_lock lock(mutex_);
  std::shared_ptr<Request> request;
  for (const std::shared_ptr<Run>& run : runs_) {
    const auto found = run->live.find(object);
    if (found == run->live.end()) continue;
    const auto next = found->second.upper_bound(offset);
    if (next != found->second.begin() && std::prev(next)->second->end() > offset) {
      request = std::prev(next)->second;
      break;
    }
    if (next != found->second.end()) *apart = std::min(*apart, next->first - offset);
  }
  if (request == nullptr) return 0;
  while (request->state != Request::State::done) {
    // is_full() plans, and may merge the request into another.
    if (request->state != Request::State::waits || !is_full()) {
      changed_.wait(lock);
    } else if (request->state == Request::State::waits) {
      read(*request, lock);
    }
    request = what_has(request);
  }
  if (request->is_dropped) return 0;
  if (request->error) std::rethrow_exception(request->error);
  const std::shared_ptr<Buffer> buffer = request->buffer;
  const uint64_t some = std::min<uint64_t>(out.size(), request->end() - offset);
  lock.unlock();
  if (buffer == nullptr) return 0;
  std::memcpy(out.data(), buffer->bytes().data() + (offset - request->begin), some);
  return some;
}

}  // namespace dsckpt
