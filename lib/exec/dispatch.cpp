#include "exec/dispatch.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "dsckpt/error.h"
#include "group/file_service.h"

namespace dsckpt {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kPause{100};
// In which ranks that are alive let go of what they are at.
constexpr milliseconds kLongestStop{5000};
// Before it nothing tells who is slow.
constexpr milliseconds kFirstLook{2000};

class Dispatch {
 public:
  Dispatch(Group& group, const RankJob& job, Shares& shares, SharedWork& work, Progress& progress)
      : group_(group),
        job_(job),
        work_(work),
        progress_(progress),
        done_before_(progress.bytes_done),
        shares_(shares) {
    const auto ranks = static_cast<size_t>(group.size());
    reached_by_.resize(ranks, 0);
    under_way_of_.resize(ranks, 0);
    for (int rank = 0; rank < group.size(); ++rank) {
      ranks_.push_back({.host = group.member(rank).host});
    }
  }

  std::vector<RankStats> operator()() {
    if (const auto files = group_.files()) files->stop(false);
    group_.send_to_all(static_cast<uint32_t>(Word::job), job_.encode());
    std::thread service([this] { serve(); });
    work_here();
    service.join();
    progress_.slowest_rank = -1;
    if (!failures_.empty()) stop_and_throw();
    // The last that others have said of it may be older than their results.
    uint64_t sum = done_before_;
    for (const RankStats& rank : ranks_) sum += rank.bytes_done;
    progress_.bytes_done = sum;
    count_messages();
    return std::move(ranks_);
  }

 private:
  // Rank 0 receives what the others send.
  void count_messages() {
    RankStats& first = ranks_.front();
    for (int rank = 1; rank < group_.size(); ++rank) {
      const Traffic traffic = group_.traffic(rank);
      RankStats& stats = ranks_[static_cast<size_t>(rank)];
      first.messages_sent += traffic.messages_sent;
      first.messages_received += traffic.messages_received;
      first.bytes_sent += traffic.bytes_sent;
      first.bytes_received += traffic.bytes_received;
      stats.messages_sent = traffic.messages_received;
      stats.messages_received = traffic.messages_sent;
      stats.bytes_sent = traffic.bytes_received;
      stats.bytes_received = traffic.bytes_sent;
    }
  }

  void say(int rank, Word word, std::string bytes = {}) {
    group_.send(rank, static_cast<uint32_t>(word), std::move(bytes));
  }

  // Rank 0's own tasks.
  void work_here() {
    try {
      work_.work_here([&] { return take(0); }, [&](std::string_view result) { absorb(0, result); },
                      own_);
    } catch (const InterruptedError&) {
      // Because of another's failure, mostly.
      const std::lock_guard lock(mutex_);
      if (failures_.empty()) failures_.emplace(0, std::current_exception());
    } catch (...) {
      fail(0, std::current_exception());
    }
  }

  std::optional<BatchRange> take(int rank) {
    const std::lock_guard lock(mutex_);
    if (!failures_.empty()) return std::nullopt;
    const std::optional<BatchRange> batches = shares_.take(rank);
    if (batches) ++under_way_of_[static_cast<size_t>(rank)];
    return batches;
  }

  void absorb(int rank, std::string_view result) {
    const std::lock_guard lock(mutex_);
    const SharedWork::Done done = work_.absorb(result);
    --under_way_of_[static_cast<size_t>(rank)];
    ranks_[static_cast<size_t>(rank)].bytes_done += done.bytes_done;
    ranks_[static_cast<size_t>(rank)].bytes_read += done.bytes_read;
  }

  void fail(int rank, std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    failures_.emplace(rank, std::move(failure));
    own_.cancelled = true;
    if (const auto files = group_.files()) files->stop(true);
  }

  bool is_over() {
    const std::lock_guard lock(mutex_);
    const auto is_idle = [](size_t tasks) { return tasks == 0; };
    return !failures_.empty() ||
           (std::all_of(under_way_of_.begin(), under_way_of_.end(), is_idle) &&
            shares_.portions_left() == 0 && left_.size() == static_cast<size_t>(group_.size()) - 1);
  }

  // Answers the others until all is done, or somebody has failed.
  void serve() {
    while (!is_over()) {
      try {
        if (const std::optional<Message> message = group_.receive(kPause)) take_message(*message);
        show_progress();
      } catch (...) {
        fail(0, std::current_exception());
      }
    }
  }

  void show_progress() {
    if (progress_.cancelled) fail(0, std::make_exception_ptr(InterruptedError()));
    reached_by_[0] = own_.bytes_done;
    uint64_t sum = done_before_;
    for (const uint64_t bytes : reached_by_) sum += bytes;
    progress_.bytes_done = sum;
    if (Clock::now() - start_ > kFirstLook) progress_.slowest_rank = slowest_rank();
  }

  // The one that has done least, if that is less than half of what is in the middle; when all is
  // given out, of those that still have something to do. -1 if there is none.
  int slowest_rank() {
    const std::lock_guard lock(mutex_);
    std::vector<uint64_t> sorted = reached_by_;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    const bool all_given = shares_.portions_left() == 0;
    const auto is_idle = [&](size_t rank) { return under_way_of_[rank] == 0; };
    bool some_idle = false;
    for (size_t rank = 0; rank < reached_by_.size(); ++rank) some_idle |= is_idle(rank);
    int slowest = -1;
    for (size_t rank = 0; rank < reached_by_.size(); ++rank) {
      const bool is_waited_for = all_given && some_idle && !is_idle(rank);
      const bool is_behind = !all_given && 2 * reached_by_[rank] < *middle;
      if (!is_waited_for && !is_behind) continue;
      if (slowest < 0 || reached_by_[rank] < reached_by_[static_cast<size_t>(slowest)]) {
        slowest = static_cast<int>(rank);
      }
    }
    return slowest;
  }

  void take_message(const Message& message) {
    switch (static_cast<Word>(message.kind)) {
      case Word::want:
        if (const std::optional<BatchRange> batches = take(message.from)) {
          say(message.from, Word::task, work_.task(*batches));
        } else {
          say(message.from, Word::no_task);
        }
        return;
      case Word::done:
        return absorb(message.from, message.bytes);
      case Word::progress:
        reached_by_[static_cast<size_t>(message.from)] = decode_number(message.bytes);
        return;
      case Word::left:
        left_.insert(message.from);
        return;
      case Word::stopped:
        stopped_.insert(message.from);
        return;
      case Word::failed:
        try {
          // What is found in files reads the same whoever has found it.
          const bool named = job_.tasks == Tasks::portions || is_of_rank(message.bytes);
          throw_failure(message.bytes, named ? group_.member(message.from).name() : "");
        } catch (...) {
          fail(message.from, std::current_exception());
        }
        return;
      default:
        throw CorruptError({}, group_.member(message.from).name() + " said what nobody expects");
    }
  }

  [[noreturn]] void stop_and_throw() {
    group_.send_to_all(static_cast<uint32_t>(Word::stop));
    const Clock::time_point deadline = Clock::now() + kLongestStop;
    const auto is_waited_for = [&] {
      for (int rank = 1; rank < group_.size(); ++rank) {
        if (!stopped_.contains(rank) && !group_.is_lost(rank)) return true;
      }
      return false;
    };
    while (is_waited_for() && Clock::now() < deadline) {
      try {
        if (const std::optional<Message> message = group_.receive(kPause)) {
          // Of several that have failed meanwhile the first one is named.
          if (static_cast<Word>(message->kind) != Word::want) take_message(*message);
        }
      } catch (...) {  // one is lost; the rest may still answer
        std::this_thread::sleep_for(kPause);
      }
    }
    // Whoever goes on around the failure reads the others' files again.
    if (const auto files = group_.files()) files->stop(false);
    std::rethrow_exception(failures_.begin()->second);
  }

  Group& group_;
  const RankJob& job_;
  SharedWork& work_;
  Progress& progress_;
  Progress own_;  // of this rank's tasks
  const uint64_t done_before_;
  const Clock::time_point start_ = Clock::now();

  // The service's.
  std::vector<uint64_t> reached_by_;  // bytes
  std::set<int> left_;
  std::set<int> stopped_;

  std::mutex mutex_;  // of what follows
  Shares& shares_;
  std::vector<size_t> under_way_of_;  // tasks
  std::vector<RankStats> ranks_;
  std::map<int, std::exception_ptr> failures_;
};

}  // namespace

std::vector<RankStats> dispatch(Group& group, const RankJob& job, Shares& shares, SharedWork& work,
                                Progress& progress) {
  return Dispatch(group, job, shares, work, progress)();
}

}  // namespace dsckpt
