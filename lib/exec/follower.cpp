#include "exec/follower.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "dsckpt/error.h"
#include "exec/extent_sums.h"
#include "exec/node_files.h"
#include "exec/portion.h"
#include "exec/rank_inputs.h"
#include "exec/rank_words.h"
#include "exec/read_back.h"
#include "io/output_file.h"

namespace dsckpt {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kListening{200};

void say(Group& group, Word word, std::string bytes = {}) {
  group.send(0, static_cast<uint32_t>(word), std::move(bytes));
}

// The number of threads is this rank's own.
RankJob job_of(std::string_view bytes, unsigned threads) {
  RankJob job = RankJob::decode(bytes);
  job.options.threads = threads;
  return job;
}

// One run: a thread that does tasks as they come.
class RankRun {
 public:
  RankRun(Group& group, RankJob job, const Answer& answer)
      : group_(group), job_(std::move(job)), answer_(answer), inputs_(job_, &group) {
    if (const auto files = group_.files()) files->stop(false);
    say(group_, Word::want);
    thread_ = std::thread([this] { work(); });
  }
  ~RankRun() { stop(); }
  RankRun(const RankRun&) = delete;
  RankRun& operator=(const RankRun&) = delete;

  void take(std::optional<std::string> task) {
    const std::lock_guard lock(mutex_);
    if (task) {
      tasks_.push_back(std::move(*task));
    } else {
      no_more_ = true;
    }
    changed_.notify_all();
  }
  void cancel() {
    progress_.cancelled = true;
    if (const auto files = group_.files()) files->stop(true);
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }
  // Returns when nothing is under way.
  void stop() {
    cancel();
    if (thread_.joinable()) thread_.join();
  }
  uint64_t bytes_done() const { return progress_.bytes_done; }

 private:
  void work() {
    try {
      if (job_.tasks == Tasks::portions) {
        do_portions();
      } else {
        while (const std::optional<std::string> task = next()) {
          say(group_, Word::done, answer_to(*task));
        }
      }
      if (progress_.cancelled) throw InterruptedError();
      inputs_.check_unchanged();
      if (job_.sync_last) sync();
      say(group_, Word::left);
    } catch (const InterruptedError&) {  // by whoever knows why
    } catch (const std::exception& failure) {
      say(group_, Word::failed, encode_failure(failure));
    }
  }

  // The one after it is asked for at once, so that it is there before this one is done.
  std::optional<std::string> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return progress_.cancelled || no_more_ || !tasks_.empty(); });
    if (progress_.cancelled || tasks_.empty()) return std::nullopt;
    std::string task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    say(group_, Word::want);
    return task;
  }

  std::string answer_to(std::string_view task) {
    const unsigned threads = job_.options.threads;
    switch (job_.tasks) {
      case Tasks::portions:
        break;
      case Tasks::extent_sums:
        return sum_for_group(task, inputs_, threads, progress_);
      case Tasks::read_back:
        return read_back_for_group(task, job_.options.limit_rate, threads, progress_);
      case Tasks::questions:
        return answer_(task, inputs_, threads, progress_);
    }
    throw CorruptError({}, "rank 0 wants what nobody knows");
  }

  void do_portions() {
    const auto next_task = [&]() -> std::optional<PortionTask> {
      const std::optional<std::string> task = next();
      if (!task) return std::nullopt;
      Portion portion = Portion::decode(*task);
      InputFiles inputs = inputs_.files().selected(inputs_.open(portion.part.files));
      return PortionTask{std::move(portion), std::move(inputs)};
    };
    run_staged_portions(job_.place, job_.options, progress_, next_task,
                        [&](const PortionResult& result) {
                          if (job_.sync_portions) sync();
                          say(group_, Word::done, result.encode());
                        });
  }

  void sync() const { FileSystem(job_.place.open()).sync(); }

  Group& group_;
  const RankJob job_;
  const Answer& answer_;
  RankInputs inputs_;
  Progress progress_;

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<std::string> tasks_;
  bool no_more_ = false;
  std::thread thread_;
};

}  // namespace

int follow(Group& group, unsigned threads, Progress& progress, const Answer& answer) {
  NodeFilesThere files(group);
  std::unique_ptr<RankRun> run;
  uint64_t said = 0;  // bytes done
  bool interrupted = false;
  for (;;) {
    const std::optional<Message> message = group.receive(kListening);
    if (progress.cancelled && !interrupted) {
      interrupted = true;
      if (run) run->cancel();
      say(group, Word::failed, encode_failure(InterruptedError()));
    }
    if (run && run->bytes_done() != said) {
      said = run->bytes_done();
      say(group, Word::progress, encode_number(said));
    }
    if (!message || files.answer(*message)) continue;
    switch (static_cast<Word>(message->kind)) {
      case Word::job:
        said = 0;
        run.reset();
        run = std::make_unique<RankRun>(group, job_of(message->bytes, threads), answer);
        break;
      case Word::task:
        if (run) run->take(message->bytes);
        break;
      case Word::no_task:
        if (run) run->take(std::nullopt);
        break;
      case Word::stop:
        run.reset();
        say(group, Word::stopped);
        break;
      case Word::end:
        return static_cast<int>(decode_number(message->bytes));
      default:
        throw CorruptError({}, "rank 0 said what nobody expects");
    }
  }
}

}  // namespace dsckpt
