#include "exec/follower.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "dsckpt/error.h"
#include "exec/portion.h"
#include "exec/rank_words.h"
#include "exec/staged_files.h"
#include "io/input_file.h"
#include "io/output_file.h"

namespace dsckpt {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kListening{200};
// The next portion is there before one is done.
constexpr int kAhead = 2;

void say(Group& group, Word word, std::string bytes = {}) {
  group.send(0, static_cast<uint32_t>(word), std::move(bytes));
}

// The number of threads is this rank's own.
RankJob job_of(std::string_view bytes, unsigned threads) {
  RankJob job = RankJob::decode(bytes);
  job.options.threads = threads;
  return job;
}

// What is read of a run's inputs, opened as it is needed.
class RankInputs {
 public:
  explicit RankInputs(const RankJob& job) : job_(job) {}

  // The numbers here of files of the run. Throws IoError for one that is another file here.
  std::vector<FileId> open(const std::vector<FileId>& files) {
    std::vector<FileId> ids;
    for (const FileId file : files) ids.push_back(open(file));
    return ids;
  }
  const InputFiles& files() const { return files_; }
  void check_unchanged() const {
    for (FileId file = 0; file < files_.size(); ++file) files_[file].check_unchanged();
  }

 private:
  FileId open(FileId file) {
    if (const auto known = ids_.find(file); known != ids_.end()) return known->second;
    const RankJob::Input& wanted = job_.inputs.at(file);
    const FileId id = files_.add_again(wanted.path, wanted.display);
    const InputFile& input = files_[id];
    if (input.stored_size() != wanted.stored_size || input.modified() != wanted.modified) {
      throw IoError(
          {.file = wanted.display},
          "is another file here than on rank 0: " + std::to_string(input.stored_size()) +
              " bytes instead of " + std::to_string(wanted.stored_size) +
              (input.stored_size() == wanted.stored_size ? ", written at another time" : ""),
          0)
          .with_hint("all ranks must see the same files");
    }
    ids_.emplace(file, id);
    return id;
  }

  const RankJob& job_;
  InputFiles files_;
  std::map<FileId, FileId> ids_;
};

// One run: a thread that does portions as they come.
class RankRun {
 public:
  RankRun(Group& group, RankJob job) : group_(group), job_(std::move(job)), inputs_(job_) {
    for (int i = 0; i < kAhead; ++i) say(group_, Word::want);
    thread_ = std::thread([this] { work(); });
  }
  ~RankRun() { stop(); }
  RankRun(const RankRun&) = delete;
  RankRun& operator=(const RankRun&) = delete;

  void take(std::optional<Portion> portion) {
    const std::lock_guard lock(mutex_);
    if (portion) {
      portions_.push_back(std::move(*portion));
    } else {
      no_more_ = true;
    }
    changed_.notify_all();
  }
  void cancel() {
    progress_.cancelled = true;
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
      while (std::optional<Portion> portion = next()) {
        do_portion(*portion);
        say(group_, Word::want);
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

  std::optional<Portion> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return progress_.cancelled || no_more_ || !portions_.empty(); });
    if (progress_.cancelled || portions_.empty()) return std::nullopt;
    Portion portion = std::move(portions_.front());
    portions_.pop_front();
    return portion;
  }

  void do_portion(Portion& portion) {
    portion.set_files(inputs_.open(portion.part.files));
    StagedFiles files(portion.part.plan, job_.place);
    const PortionResult result =
        run_portion(portion, inputs_.files(), files, progress_, job_.options);
    if (job_.sync_portions) sync();
    say(group_, Word::done, result.encode());
  }

  void sync() const { FileSystem(job_.place.files_in).sync(); }

  Group& group_;
  const RankJob job_;
  RankInputs inputs_;
  Progress progress_;

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<Portion> portions_;
  bool no_more_ = false;
  std::thread thread_;
};

}  // namespace

int follow(Group& group, unsigned threads, Progress& progress) {
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
    if (!message) continue;
    switch (static_cast<Word>(message->kind)) {
      case Word::job:
        said = 0;
        run.reset();
        run = std::make_unique<RankRun>(group, job_of(message->bytes, threads));
        break;
      case Word::portion:
        if (run) run->take(Portion::decode(message->bytes));
        break;
      case Word::no_portion:
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
