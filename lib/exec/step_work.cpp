#include "exec/step_work.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
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
      .with_hint("every step takes the same program");
}

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

class StepWorker {
 public:
  StepWorker(const Folder& folder, StepPlan plan, const StepOptions& options, Progress& progress)
      : folder_(folder),
        plan_(std::move(plan)),
        progress_(progress),
        order_(order_of(plan_.portions.size(), options)),
        inputs_(plan_.job, nullptr),
        disk_(folder) {
    plan_.job.place.path = folder.path();
    plan_.job.place.folder = folder;
    plan_.job.place.files_in = files_now(folder);
    plan_.job.place.attempts_in = attempts_now(folder);
    plan_.job.place.are_there = true;
    plan_.job.options.threads = options.threads;
  }

  StepsDone operator()() {
    for (const size_t portion : order_) {
      if (!has_result(folder_, portion)) progress_.bytes_total += plan_.portions[portion].bytes;
    }
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
  // Whether nobody commits or has removed what this one works on.
  bool is_there() const {
    return !plan_.job.place.files_in.empty() && folder_.has(plan_.job.place.files_in) &&
           has_plan(folder_);
  }

  void work() {
    run_staged_portions(
        plan_.job.place, plan_.job.options, progress_, [&] { return next(); },
        [&](PortionResult result) { take(std::move(result)); },
        [&](const BatchRange& batches, const std::exception& failure) { fail(batches, failure); });
    const std::lock_guard lock(mutex_);
    publish();
  }

  // One thread at a time.
  std::optional<PortionTask> next() {
    while (next_ < order_.size()) {
      if (progress_.cancelled) throw InterruptedError();
      const size_t number = order_[next_++];
      if (has_result(folder_, number)) continue;
      for (const StepFailure& failure : load_failures(folder_)) {
        if (!failure.may_be_tried_again()) failure.raise();
      }
      Portion portion = load_portion(folder_, plan_, number);
      check_folders(portion);
      InputFiles inputs = inputs_.files().selected(inputs_.open(portion.part.files));
      const std::lock_guard lock(mutex_);
      numbers_.emplace(portion.batches.first, number);
      return PortionTask{std::move(portion), std::move(inputs)};
    }
    return std::nullopt;
  }

  // No link leads out of the folder.
  void check_folders(const Portion& portion) {
    for (const PlannedFile& file : portion.part.plan.outputs()) {
      const std::filesystem::path folder = (plan_.job.place.files_in / file.path).parent_path();
      if (checked_.insert(folder).second) static_cast<void>(folder_.below(folder));
    }
  }

  // These by any thread.
  void take(PortionResult result) {
    const std::lock_guard lock(mutex_);
    results_.push_back(std::move(result));
    if (Clock::now() >= next_publish_) publish();
  }

  void fail(const BatchRange& batches, const std::exception& failure) {
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
    // What was read before is of one state of the inputs.
    inputs_.check_unchanged();
    disk_.sync();
    for (const PortionResult& result : std::exchange(results_, {})) {
      const size_t number = numbers_.at(result.batches.first);
      save_result(folder_, plan_, number, result);
      ++done_.portions;
      done_.bytes += plan_.portions[number].bytes;
    }
    const Clock::time_point end = Clock::now();
    next_publish_ = end + std::max<Clock::duration>(kShortestWait, kWaitBySync * (end - begin));
  }

  const Folder folder_;
  StepPlan plan_;
  Progress& progress_;
  const std::vector<size_t> order_;
  size_t next_ = 0;  // in it
  RankInputs inputs_;
  FileSystem disk_;
  std::set<std::filesystem::path> checked_;

  std::mutex mutex_;                    // of what follows
  std::map<uint64_t, size_t> numbers_;  // of portions under way, by their first batch
  std::vector<PortionResult> results_;  // that are not published
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
  size_t count = 0;
  for (size_t portion = 0; portion < plan.portions.size(); ++portion) {
    count += has_result(folder, portion) ? 1 : 0;
  }
  return count;
}

}  // namespace dsckpt
