#include "exec/rank_work.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "dsckpt/error.h"
#include "nodes/file_service.h"

namespace dsckpt {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr milliseconds kShortestPause{2};
constexpr milliseconds kLongestPause{100};

class WorkOfAll {
 public:
  WorkOfAll(Meeting& ranks, const Folder& folder, const AnswerTask& answer, unsigned threads,
            Progress& progress)
      : ranks_(ranks),
        folder_(folder),
        plan_(load_plan(folder)),
        threads_(threads),
        progress_(progress),
        done_before_(progress.bytes_done),
        answer_(answer),
        self_{.files = ranks.files(), .on_begin = [this](size_t portion) {
                const std::lock_guard lock(mutex_);
                begun_.insert(portion);
              }} {}

  void operator()() {
    ranks_.say(Word::work, fs::absolute(folder_.path()).string());
    try {
      const StepShare share{.number = 0, .of = static_cast<size_t>(ranks_.size())};
      watch([&] { work({.threads = threads_, .share = share, .rank = &self_}); });
      wait_for_others();
      // The rest was begun by ranks that do not continue with it.
      watch([&] { work({.threads = threads_, .rank = &self_}); });
      ranks_.check(names());
    } catch (...) {
      stop_files(true);
      ranks_.stop();
      stop_files(false);
      throw;
    }
    progress_.slowest_rank = -1;
    count();
  }

 private:
  bool names() const { return plan_.job.tasks == Tasks::portions; }

  void stop_files(bool stopped) {
    if (self_.files != nullptr) self_.files->stop(stopped);
  }

  void work(StepOptions options) {
    options.answer = answer_;
    const StepsDone done = work_on_steps(folder_, ranks_.program(), options, own_);
    if (done.is_taken_over) {
      throw IoError({.file = folder_.path().string()}, "was removed while it was worked on", 0);
    }
  }

  // Runs `body` in a thread, and has it stop if a rank fails or somebody wants it.
  template <typename Body>
  void watch(Body&& body) {
    std::exception_ptr failure;
    bool is_done = false;
    std::thread thread([&] {
      std::exception_ptr thrown;
      try {
        body();
      } catch (...) {
        thrown = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      failure = thrown;
      is_done = true;
      changed_.notify_all();
    });
    std::exception_ptr of_others;
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kLongestPause, [&] { return is_done; })) {
      lock.unlock();
      try {
        if (!of_others) look();
      } catch (...) {
        of_others = std::current_exception();
        own_.cancelled = true;
        stop_files(true);
      }
      lock.lock();
    }
    lock.unlock();
    thread.join();
    if (of_others) std::rethrow_exception(of_others);
    if (failure) std::rethrow_exception(failure);
  }

  void look() {
    if (progress_.cancelled) throw InterruptedError();
    ranks_.check(names());
    count();
  }

  // Adds up what is done, by the results of others. Returns which portions have one.
  std::vector<bool> count() {
    folder_.below("results").look_anew();
    std::vector<bool> found = with_results(folder_, plan_);
    uint64_t bytes = done_before_ + own_.bytes_done;
    const std::lock_guard lock(mutex_);
    for (size_t portion = 0; portion < found.size(); ++portion) {
      if (found[portion] && !begun_.contains(portion)) bytes += plan_.portions[portion].bytes;
    }
    progress_.bytes_done = bytes;
    return found;
  }

  void wait_for_others() {
    for (milliseconds pause = kShortestPause;; pause = std::min(2 * pause, kLongestPause)) {
      look();
      const std::vector<bool> found = count();
      int waited_for = -1;
      for (size_t portion = 0; portion < found.size() && waited_for < 0; ++portion) {
        if (found[portion]) continue;
        const std::optional<int> taker = taker_of(folder_, portion);
        if (taker && *taker < ranks_.size() && ranks_.is_at_work(*taker)) waited_for = *taker;
      }
      if (waited_for < 0) return;
      progress_.slowest_rank = waited_for;
      std::this_thread::sleep_for(pause);
    }
  }

  Meeting& ranks_;
  const Folder& folder_;
  const StepPlan plan_;
  const unsigned threads_;
  Progress& progress_;
  Progress own_ = {};  // of this rank's portions
  const uint64_t done_before_;
  const AnswerTask& answer_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::set<size_t> begun_;  // by this rank
  const WorkingRank self_;
};

}  // namespace

void work_with_ranks(Meeting& ranks, const Folder& folder, const AnswerTask& answer,
                     unsigned threads, Progress& progress) {
  WorkOfAll(ranks, folder, answer, threads, progress)();
}

}  // namespace dsckpt
