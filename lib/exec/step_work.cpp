#include "exec/step_work.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "base/random.h"
#include "dsckpt/error.h"
#include "exec/rank_inputs.h"
#include "io/output_file.h"

namespace dsckpt {
namespace {

using Clock = std::chrono::steady_clock;

// Results wait for the disk together: for so long, or so many times as long as that takes.
constexpr std::chrono::milliseconds kShortestWait{1000};
constexpr int kWaitBySync = 10;

void check_program(const Folder& folder, const std::string& planned, const std::string& program) {
  if (planned == program) return;
  throw UsageError(folder.path().string() + ": was planned by " + planned + ", and this is " +
                   program)
      .with_hint("all steps need the same program");
}

// Chooses portions, one after the other; nothing: none is left.
using Pick = std::function<std::optional<size_t>()>;

// All portions that this process may do, in the order in which it does.
std::vector<size_t> order_of(size_t portions, const StepOptions& options) {
  std::vector<size_t> order;
  if (!options.share) {
    order.resize(portions);
    std::iota(order.begin(), order.end(), size_t{0});
    // In one order they would all be at the same one.
    std::mt19937_64 engine(random_number());
    std::shuffle(order.begin(), order.end(), engine);
    return order;
  }
  const size_t number = options.share->number;
  const size_t of = options.share->of;
  const auto begin_of = [&](size_t share) { return share * portions / of; };
  for (size_t i = begin_of(number); i < begin_of(number + 1); ++i) order.push_back(i);
  if (options.only_share) return order;
  for (size_t other = 1; other < of; ++other) {
    const size_t share = (number + other) % of;
    for (size_t i = begin_of(share + 1); i > begin_of(share); --i) order.push_back(i - 1);
  }
  return order;
}

Pick in_order(std::vector<size_t> order) {
  return [order = std::move(order), next = size_t{0}]() mutable -> std::optional<size_t> {
    return next < order.size() ? std::optional(order[next++]) : std::nullopt;
  };
}

// The portions that a rank takes.
class Taking {
 public:
  Taking(const Folder& folder, const StepPlan& plan, int rank, size_t share)
      : folder_(folder), plan_(plan), rank_(rank), share_(share) {
    while (next_ < plan.portions.size() && plan.portions[next_].share < share) ++next_;
  }

  std::optional<size_t> operator()() {
    while (next_ < plan_.portions.size() && plan_.portions[next_].share == share_) {
      if (take_portion(folder_, next_++, rank_)) return next_ - 1;
    }
    while (const std::optional<size_t> portion = last_of_the_busiest()) {
      if (take_portion(folder_, *portion, rank_)) return portion;
    }
    return std::nullopt;
  }

 private:
  std::optional<size_t> last_of_the_busiest() const {
    const std::vector<bool> is_taken = taken(folder_, plan_);
    std::map<uint64_t, std::pair<uint64_t, size_t>> left;  // of a share: bytes, and its last
    for (size_t i = 0; i < plan_.portions.size(); ++i) {
      if (is_taken[i]) continue;
      auto& [bytes, last] = left[plan_.portions[i].share];
      bytes += plan_.portions[i].bytes;
      last = i;
    }
    const auto most = std::max_element(left.begin(), left.end(), [](const auto& a, const auto& b) {
      return a.second.first < b.second.first;
    });
    return most == left.end() ? std::nullopt : std::optional(most->second.second);
  }

  const Folder& folder_;
  const StepPlan& plan_;
  const int rank_;
  const uint64_t share_;
  size_t next_ = 0;
};

class StepWorker {
 public:
  StepWorker(const Folder& folder, StepPlan plan, const StepOptions& options, Progress& progress)
      : folder_(folder),
        plan_(std::move(plan)),
        progress_(progress),
        answer_(options.answer),
        rank_(options.rank),
        inputs_(plan_.job, options.rank),
        disk_(folder) {
    if (rank_ != nullptr && options.share) {
      pick_ = Taking(folder_, plan_, rank_->number, options.share->number);
    } else {
      std::vector<size_t> order = order_of(plan_.portions.size(), options);
      for (const size_t portion : order) {
        if (!has_result(folder_, portion)) progress_.bytes_total += plan_.portions[portion].bytes;
      }
      pick_ = in_order(std::move(order));
    }
    plan_.job.place.path = folder.path();
    plan_.job.place.folder = folder;
    plan_.job.place.files_in = files_now(folder);
    plan_.job.place.attempts_in = attempts_now(folder);
    plan_.job.place.are_there = true;
    plan_.job.options.threads = options.threads;
  }

  StepsDone operator()() {
    try {
      if (is_there()) work();
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::interrupted) {
        publish_what_is_done();
        throw;
      }
      if (is_there()) throw;
    }
    done_.is_taken_over = !is_there();
    if (!done_.is_taken_over) {
      done_.left = plan_.portions.size() - results_in(folder_, plan_);
    }
    return done_;
  }

 private:
  // Returns false if somebody commits or has removed the plan.
  bool is_there() const {
    const std::filesystem::path& files = plan_.job.place.files_in;
    const bool has_files = !files.empty() && folder_.has(files);
    return has_plan(folder_) && (has_files || plan_.job.tasks == Tasks::pieces);
  }

  void work() {
    if (plan_.job.tasks == Tasks::pieces) return answer_all();
    run_staged_portions(
        plan_.job.place, plan_.job.options, progress_, [&] { return next(); },
        [&](const PortionResult& result) { take(result.batches, result.encode()); },
        [&](const BatchRange& batches, const std::exception& failure) { fail(batches, failure); });
    const std::lock_guard lock(mutex_);
    publish();
  }

  void answer_all() {
    while (const std::optional<size_t> number = next_number()) {
      const std::string task = load_task(folder_, plan_, *number);
      const BatchRange& batches = plan_.portions[*number].batches;
      try {
        take(batches, answer_(task, inputs_, plan_.job.options.threads, progress_));
      } catch (const Error& error) {
        if (rank_ != nullptr || error.kind() == ErrorKind::interrupted) throw;
        if (error.kind() == ErrorKind::io) {
          fail(batches, error);
          throw;
        }
        take(batches, std::string(kNoAnswers));
      }
    }
    const std::lock_guard lock(mutex_);
    publish();
  }

  // One thread at a time; as next().
  std::optional<size_t> next_number() {
    while (const std::optional<size_t> number = pick_()) {
      if (progress_.cancelled) throw InterruptedError();
      if (has_result(folder_, *number)) continue;
      if (rank_ != nullptr && rank_->on_begin) rank_->on_begin(*number);
      const std::lock_guard lock(mutex_);
      numbers_.emplace(plan_.portions[*number].batches.first, *number);
      return number;
    }
    return std::nullopt;
  }

  std::optional<PortionTask> next() {
    const std::optional<size_t> number = next_number();
    if (!number) return std::nullopt;
    if (rank_ == nullptr) {
      for (const StepFailure& failure : load_failures(folder_)) {
        if (!failure.may_be_tried_again()) failure.raise();
      }
    }
    Portion portion = load_portion(folder_, plan_, *number);
    InputFiles inputs = inputs_.files().selected(inputs_.open(portion.part.files));
    return PortionTask{std::move(portion), std::move(inputs)};
  }

  // These by any thread.
  void take(const BatchRange& batches, std::string result) {
    const std::lock_guard lock(mutex_);
    results_.emplace_back(numbers_.at(batches.first), std::move(result));
    if (!plan_.job.sync_results || Clock::now() >= next_publish_) publish();
  }

  void fail(const BatchRange& batches, const std::exception& failure) {
    if (rank_ != nullptr) return;
    const std::lock_guard lock(mutex_);
    const auto found = numbers_.find(batches.first);
    if (found != numbers_.end() && is_there()) save_failure(folder_, found->second, failure);
  }

  void publish_what_is_done() {
    try {
      const std::lock_guard lock(mutex_);
      if (is_there()) publish();
    } catch (const Error&) {  // then it is done again
    }
  }

  void publish() {
    if (results_.empty()) return;
    const Clock::time_point begin = Clock::now();
    // Another run may have planned anew there.
    if (!is_there()) throw IoError({.file = folder_.path().string()}, "is worked on by others", 0);
    // All results are of one state of the inputs.
    inputs_.check_unchanged();
    if (plan_.job.sync_results && plan_.job.tasks == Tasks::portions) disk_.sync();
    for (const auto& [number, result] : std::exchange(results_, {})) {
      save_result(folder_, plan_, number, result, rank_ != nullptr ? rank_->number : 0);
      ++done_.portions;
      done_.bytes += plan_.portions[number].bytes;
    }
    const Clock::time_point end = Clock::now();
    next_publish_ = end + std::max<Clock::duration>(kShortestWait, kWaitBySync * (end - begin));
  }

  const Folder folder_;
  StepPlan plan_;
  Progress& progress_;
  const AnswerTask answer_;
  const WorkingRank* const rank_;
  Pick pick_;
  RankInputs inputs_;
  FileSystem disk_;

  std::mutex mutex_;                    // guards what follows
  std::map<uint64_t, size_t> numbers_;  // of portions under way, by their first batch
  std::vector<std::pair<size_t, std::string>> results_;  // that are not published
  Clock::time_point next_publish_ = Clock::now() + kShortestWait;
  StepsDone done_;
};

}  // namespace

StepsDone work_on_steps(const Folder& folder, const std::string& program,
                        const StepOptions& options, Progress& progress) {
  if (const std::optional<std::string> planned = planned_by(folder)) {
    check_program(folder, *planned, program);
  } else {
    return {.is_taken_over = true};
  }
  StepPlan plan;
  try {
    plan = load_plan(folder);
  } catch (const IoError&) {
    if (has_plan(folder)) throw;
    return {.is_taken_over = true};
  }
  return StepWorker(folder, std::move(plan), options, progress)();
}

size_t results_in(const Folder& folder, const StepPlan& plan) {
  const std::vector<bool> found = with_results(folder, plan);
  return static_cast<size_t>(std::count(found.begin(), found.end(), true));
}

}  // namespace dsckpt
