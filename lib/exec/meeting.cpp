#include "exec/meeting.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/host.h"
#include "base/kernels.h"
#include "base/random.h"
#include "base/text.h"
#include "base/varint.h"
#include "dsckpt/error.h"
#include "exec/rank_job.h"
#include "exec/staging_owner.h"
#include "io/file_system.h"
#include "io/text_file.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kBeat{1000};
// A note that is older is looked at more closely.
constexpr milliseconds kMissedBeat{1500};
// In which all ranks come, mostly.
constexpr std::chrono::seconds kGathering{30};
// In which living ranks stop their current task.
constexpr milliseconds kLongestStop{5000};
constexpr milliseconds kShortPause{5};
constexpr milliseconds kPause{100};
// The factor for pauses if notes are on a server.
constexpr int kTimesLonger = 5;
constexpr int kRemovalsOfMeeting = 20;
constexpr const char* kAloneHint =
    "a tool that was started by one rank of another program inherits the variables of its "
    "launcher: "
    "--group none runs it alone";

std::string note_name(int rank) {
  return "rank-" + std::to_string(rank);
}

struct FirstNote {
  std::string program = {};
  uint64_t meeting = 0;
  uint64_t beat = 0;
  std::string host = {};
  std::string owner = {};
  std::vector<uint64_t> welcome = {};  // by rank: OtherNote::visit
  uint64_t number = 0;                 // of the word
  Word word = Word::nothing;
  std::string text = {};

  static void fields(auto& codec, auto& self) {
    codec(self.program, self.meeting, self.beat, self.host, self.owner, self.welcome, self.number);
    codec.one_of(self.word, Word::end);
    codec(self.text);
  }
};

struct OtherNote {
  std::string program = {};
  uint64_t meeting = 0;  // that it has found
  uint64_t visit = 0;    // a number that no other process has
  uint64_t beat = 0;
  int size = 0;  // as its launcher says
  std::string host = {};
  std::string owner = {};
  bool is_gone = false;
  uint64_t heard = 0;  // the last word that it has done
  bool failed = false;
  std::string answer = {};  // or encode_failure()

  static void fields(auto& codec, auto& self) {
    codec(self.program, self.meeting, self.visit, self.beat, self.size, self.host, self.owner,
          self.is_gone, self.heard, self.failed, self.answer);
  }
};

void write_note(const Folder& folder, int rank, const std::string& note) {
  std::string bytes;
  append_le(bytes, crc32(0, as_byte_span(note)));
  replace_text_file(folder, note_name(rank), bytes + note, false);
}

enum class Found : uint8_t { note, nothing, no_file };

// The file may be replaced meanwhile, and has no name then.
template <typename Note>
Found read_note(const Folder& folder, int rank, Note& note) {
  const int fd = folder.open_to_read(note_name(rank));
  if (fd < 0) return errno == ENOENT || errno == ESTALE ? Found::no_file : Found::nothing;
  std::string bytes;
  std::array<char, 4096> buffer;
  ssize_t got = 0;
  while ((got = ::read(fd, buffer.data(), buffer.size())) > 0) {
    bytes.append(buffer.data(), static_cast<size_t>(got));
  }
  ::close(fd);
  if (got < 0 || bytes.size() < sizeof(uint32_t)) return Found::nothing;
  const std::string content = bytes.substr(sizeof(uint32_t));
  if (load_le<uint32_t>(as_byte_span(bytes).data()) != crc32(0, as_byte_span(content))) {
    return Found::nothing;
  }
  try {
    note = decoded<Note>(content);
    return Found::note;
  } catch (const Error&) {  // another version's
    return Found::nothing;
  }
}

// The time for which a process has not renewed its note. Only time in which this process has looked
// counts: it may have been stopped itself, or have waited for a server.
class Silence {
 public:
  void look(uint64_t beat) {
    const Clock::time_point now = Clock::now();
    silent_ += std::min<Clock::duration>(now - std::exchange(last_, now), kBeat);
    if (beat != std::exchange(beat_, beat)) silent_ = {};
  }
  Clock::duration silent() const { return silent_; }
  // `owner`: its owner_line().
  bool is_dead(const std::string& owner) const {
    return silent_ > kMissedBeat && owner_in(owner).state == OwnerState::dead;
  }

 private:
  Clock::time_point last_ = Clock::now();
  Clock::duration silent_ = {};
  uint64_t beat_ = 0;
};

struct MeetingPlace {
  fs::path above = {};
  std::string name = {};
};

MeetingPlace place_of(const Launch& launch, const Environment& environment) {
  const char* folder = environment("DSCKPT_GROUP_DIR");
  if (launch.name.empty() && folder == nullptr) {
    throw UsageError(launch.by + " gives its runs no name by which the ranks could find each other")
        .with_hint("DSCKPT_GROUP_DIR names a new folder that all ranks see");
  }
  if (folder == nullptr) folder = environment("HOME");
  MeetingPlace place{.above = folder == nullptr ? "." : folder, .name = ".dsckpt-group-"};
  for (const char c : launch.name) {
    place.name += std::isalnum(static_cast<unsigned char>(c)) ? c : '-';
  }
  return place;
}

// A process that is stopped may write there once more.
void remove_meeting(const Folder& above, const std::string& name) {
  const std::string gone = name + "-gone-" + std::to_string(random_number());
  if (above.rename(name, above, gone) != 0) return;
  for (int left = kRemovalsOfMeeting; left > 0 && above.remove_all(gone) != 0; --left) {
    std::this_thread::sleep_for(kShortPause);
  }
}

bool is_on_server(const fs::path& path) {
  return file_system_kind(path) != FileSystemKind::local;
}

}  // namespace

struct Meeting::Impl {
  struct Other {
    bool has_come = false;
    OtherNote note = {};
    Silence silence = {};
  };

  Impl(const Launch& launch, const MeetingOptions& given, const Environment& environment)
      : options(given), place(place_of(launch, environment)) {
    note = {.program = given.program,
            .meeting = random_number(),
            .host = host_name(),
            .owner = owner_line(),
            .welcome = std::vector<uint64_t>(static_cast<size_t>(launch.size))};
    others.resize(static_cast<size_t>(launch.size));
    try {
      above = Folder::at(fs::absolute(place.above));
      remove_meeting(*above, place.name);
      folder = above->make_own(place.name);
      // NFS remembers which names were not there, so all are there from now on.
      for (int rank = launch.size - 1; rank >= 0; --rank) {
        write_note(*folder, rank, rank == 0 ? encoded(note) : "");
      }
    } catch (const IoError& error) {
      Error(error)
          .hinted(
              "all ranks meet there; DSCKPT_GROUP_DIR names a folder that all ranks see and "
              "this user can write to")
          .raise();
    }
    pause = kShortPause * (is_on_server(folder->path()) ? kTimesLonger : 1);
    thread = std::thread([this] { loop(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      is_over = true;
    }
    changed.notify_all();
    thread.join();
    remove_meeting(*above, place.name);
  }

  void loop() {
    std::unique_lock lock(mutex);
    Clock::time_point written = Clock::now();
    while (!is_over) {
      lock.unlock();
      std::vector<std::optional<OtherNote>> found(others.size());
      for (size_t rank = 1; rank < others.size(); ++rank) {
        OtherNote read;
        if (read_note(*folder, static_cast<int>(rank), read) == Found::note) {
          found[rank] = std::move(read);
        }
      }
      lock.lock();
      for (size_t rank = 1; rank < others.size(); ++rank) take(static_cast<int>(rank), found[rank]);
      if (is_changed || Clock::now() - written >= kBeat) {
        is_changed = false;
        written = Clock::now();
        ++note.beat;
        const std::string text = encoded(note);
        lock.unlock();
        try {
          write_note(*folder, 0, text);
        } catch (const Error&) {  // the others go on as long as they hear of nothing else
        }
        lock.lock();
      }
      seen.notify_all();
      const bool all_here = std::all_of(others.begin() + 1, others.end(),
                                        [](const Other& other) { return other.has_come; });
      changed.wait_for(lock, all_here && waiting == 0 ? std::max(kPause, pause) : pause,
                       [&] { return is_over || is_changed; });
    }
  }

  void take(int rank, std::optional<OtherNote>& found) {
    Other& other = others[static_cast<size_t>(rank)];
    if (found && found->meeting == note.meeting) {
      other.note = *std::move(found);
      other.has_come = true;
      uint64_t& welcomed = note.welcome[static_cast<size_t>(rank)];
      is_changed |= std::exchange(welcomed, other.note.visit) != other.note.visit;
    }
    if (other.has_come) other.silence.look(other.note.beat);
  }

  bool is_away(const Other& other) const {
    if (!other.has_come) return Clock::now() - start > kGathering;
    return other.note.is_gone || other.silence.silent() > options.silence ||
           other.silence.is_dead(other.note.owner);
  }

  std::string name(int rank) const {
    return Member{rank, rank == 0 ? note.host : others[static_cast<size_t>(rank)].note.host}.name();
  }

  void check(bool names) const {
    for (size_t i = 1; i < others.size(); ++i) {
      const auto rank = static_cast<int>(i);
      const OtherNote& other = others[i].note;
      if (!others[i].has_come) continue;
      if (other.program != options.program) {
        throw UsageError(name(rank) + " runs " + other.program + ", and " + name(0) + " runs " +
                         options.program)
            .with_hint("all ranks need the same program");
      }
      if (static_cast<size_t>(other.size) != others.size()) {
        throw UsageError(name(rank) + " was started as one of " + counted(other.size, "rank") +
                         ", and " + name(0) + " as one of " + std::to_string(others.size()));
      }
      if (other.heard != note.number || !other.failed) continue;
      throw_failure(other.answer, names || is_of_rank(other.answer) ? name(rank) : "");
    }
  }

  // Returns when all that are not away have done the last word; or after so long.
  void wait(std::unique_lock<std::mutex>& lock, milliseconds longest, bool for_those_to_come,
            const Progress* progress) {
    const Clock::time_point deadline = Clock::now() + longest;
    ++waiting;
    changed.notify_all();
    const auto is_waited_for = [&](const Other& other) {
      if (!other.has_come && !for_those_to_come) return false;
      return !(other.has_come && other.note.heard == note.number) && !is_away(other);
    };
    while (Clock::now() < deadline &&
           std::any_of(others.begin() + 1, others.end(), is_waited_for)) {
      seen.wait_for(lock, kPause);
      if (progress == nullptr) continue;
      try {
        if (progress->cancelled) throw InterruptedError();
        check(true);
      } catch (...) {
        --waiting;
        throw;
      }
    }
    --waiting;
  }

  const MeetingOptions options;
  const MeetingPlace place;
  const Clock::time_point start = Clock::now();
  std::optional<Folder> above;
  std::optional<Folder> folder;
  milliseconds pause{};

  mutable std::mutex mutex;         // guards what follows
  std::condition_variable changed;  // for the thread
  std::condition_variable seen;     // for those who wait
  FirstNote note;
  bool is_changed = false;  // the note
  bool is_over = false;
  int waiting = 0;
  std::vector<Other> others;  // by rank; rank 0's is not used
  std::thread thread;
};

Meeting::Meeting(const Launch& launch, const MeetingOptions& options,
                 const Environment& environment)
    : impl_(std::make_unique<Impl>(launch, options, environment)) {}

Meeting::~Meeting() = default;

int Meeting::size() const {
  return static_cast<int>(impl_->others.size());
}

Member Meeting::member(int rank) const {
  const std::lock_guard lock(impl_->mutex);
  if (rank == 0) return {0, impl_->note.host};
  return {rank, impl_->others.at(static_cast<size_t>(rank)).note.host};
}

const std::string& Meeting::program() const {
  return impl_->options.program;
}

std::chrono::seconds Meeting::silence() const {
  return impl_->options.silence;
}

bool Meeting::is_at_work(int rank) const {
  const std::lock_guard lock(impl_->mutex);
  const Impl::Other& other = impl_->others.at(static_cast<size_t>(rank));
  return other.has_come && other.note.heard != impl_->note.number && !impl_->is_away(other);
}

void Meeting::say(Word word, const std::string& text) {
  const std::lock_guard lock(impl_->mutex);
  ++impl_->note.number;
  impl_->note.word = word;
  impl_->note.text = text;
  impl_->is_changed = true;
  impl_->changed.notify_all();
}

void Meeting::check(bool names) const {
  const std::lock_guard lock(impl_->mutex);
  impl_->check(names);
}

std::map<int, std::string> Meeting::ask(Word word, const std::string& text,
                                        const Progress& progress) {
  say(word, text);
  std::unique_lock lock(impl_->mutex);
  impl_->wait(lock, kGathering, true, &progress);
  impl_->check(true);
  std::map<int, std::string> answers;
  for (size_t i = 1; i < impl_->others.size(); ++i) {
    const Impl::Other& other = impl_->others[i];
    if (other.has_come && other.note.heard == impl_->note.number) {
      answers.emplace(static_cast<int>(i), other.note.answer);
    }
  }
  return answers;
}

void Meeting::stop() {
  say(Word::nothing, "");
  std::unique_lock lock(impl_->mutex);
  impl_->wait(lock, kLongestStop, false, nullptr);
}

void Meeting::end(int status) {
  say(Word::end, std::to_string(status));
  std::unique_lock lock(impl_->mutex);
  impl_->wait(lock, kLongestStop, false, nullptr);
  // A launcher that ends all ranks has ended those before they came.
  constexpr int kInterrupted = 130;
  const auto left = std::chrono::ceil<milliseconds>(impl_->start + kGathering - Clock::now());
  if (status != kInterrupted && left.count() > 0) impl_->wait(lock, left, true, nullptr);
}

Folder Meeting::make_folder() {
  // A late rank must not find a newer folder under the name of its own.
  const std::string name = "tasks-" + std::to_string(random_number());
  if (const int failed = impl_->folder->make_folder(name, 0700)) {
    throw IoError({.file = (impl_->folder->path() / name).string()}, "cannot make the folder",
                  failed);
  }
  return impl_->folder->below(name);
}

void Meeting::remove_folder(const Folder& folder) {
  static_cast<void>(impl_->folder->remove_all(folder.path().filename()));
}

void Meeting::set_files(std::shared_ptr<FileClient> files, std::string servers) {
  files_ = std::move(files);
  servers_ = std::move(servers);
}

struct Attendance::Impl {
  Impl(const Launch& launch, const MeetingOptions& given, const Environment& environment,
       const std::atomic<bool>& interrupted)
      : rank(launch.rank), silence(given.silence), cancelled(interrupted) {
    own = {.program = given.program,
           .visit = random_number(),
           .size = launch.size,
           .host = host_name(),
           .owner = owner_line()};
    find(launch, place_of(launch, environment));
    pause = kShortPause * (is_on_server(folder->path()) ? kTimesLonger : 1);
    thread = std::thread([this] { loop(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      is_over = own.is_gone = is_changed = true;
    }
    changed.notify_all();
    thread.join();
  }

  void find(const Launch& launch, const MeetingPlace& place) {
    std::string why = "nothing says where it is";
    Silence passed;
    for (uint64_t beat = 0;; std::this_thread::sleep_for(kShortPause)) {
      passed.look(beat);
      if (cancelled) throw InterruptedError();
      if (passed.silent() > kGathering) {
        throw IoError({},
                      Member{rank, own.host}.name() + " of " + std::to_string(launch.size) +
                          ", as " + launch.by + " says, has not found rank 0 within " +
                          std::to_string(kGathering.count()) + " s: " + why,
                      0)
            .with_hint(kAloneHint);
      }
      try {
        const Folder above = Folder::at(fs::absolute(place.above));
        above.look_anew();
        folder = above.own(place.name, true);
        if (!folder || read_note(*folder, 0, first) != Found::note) continue;
        const auto number = static_cast<size_t>(rank);
        if (number < first.welcome.size() && first.welcome[number] == own.visit) return;
        why = "who has written to " + folder->path().string() + " does not answer";
        if (std::exchange(own.meeting, first.meeting) != first.meeting) {
          write_note(*folder, rank, encoded(own));
        }
      } catch (const Error& error) {  // an earlier run's is being removed, perhaps
        why = error.message();
        own.meeting = 0;
      }
    }
  }

  void loop() {
    std::unique_lock lock(mutex);
    Clock::time_point written = Clock::now();
    for (;;) {
      if (is_changed || Clock::now() - written >= kBeat) {
        is_changed = false;
        written = Clock::now();
        ++own.beat;
        const std::string text = encoded(own);
        lock.unlock();
        try {
          write_note(*folder, rank, text);
        } catch (const Error&) {  // then this rank is away
        }
        lock.lock();
      }
      if (is_over) return;
      lock.unlock();
      FirstNote found;
      const Found what = read_note(*folder, 0, found);
      lock.lock();
      if (what == Found::no_file) has_ended = true;
      if (what == Found::note) first = std::move(found);
      listened.look(first.beat);
      if (listened.silent() > silence) {
        lost = "has been silent for " +
               std::to_string(std::chrono::floor<std::chrono::seconds>(listened.silent()).count()) +
               " s";
      } else if (listened.is_dead(first.owner)) {
        lost = "is gone: it was killed, or its node is lost";
      }
      const bool stops = has_ended || !lost.empty() || cancelled || first.number != handled;
      if (stops && !progress.cancelled) {
        progress.cancelled = true;
        if (stop) stop(true);
      }
      if (stops) seen.notify_all();
      changed.wait_for(lock, pause, [&] { return is_over || is_changed; });
    }
  }

  void reply(const std::string& text, bool failed) {
    const std::lock_guard lock(mutex);
    own.heard = handled;
    own.failed = failed;
    own.answer = text;
    is_changed = true;
    changed.notify_all();
  }

  const int rank;
  const std::chrono::seconds silence;
  const std::atomic<bool>& cancelled;
  std::optional<Folder> folder;
  milliseconds pause{};
  Progress progress;

  std::mutex mutex;                 // guards what follows
  std::condition_variable changed;  // for the thread
  std::condition_variable seen;     // for next()
  FirstNote first;
  OtherNote own;
  bool is_changed = false;  // `own`
  bool is_over = false;
  uint64_t handled = 0;  // the number of the word that was given out
  Silence listened;
  bool has_ended = false;  // rank 0, without this rank
  std::string lost = {};   // what rank 0 is, if it is lost
  std::function<void(bool)> stop;
  std::thread thread;
};

Attendance::Attendance(const Launch& launch, const MeetingOptions& options,
                       const Environment& environment, const std::atomic<bool>& cancelled)
    : impl_(std::make_unique<Impl>(launch, options, environment, cancelled)) {}

Attendance::~Attendance() = default;

Attendance::Order Attendance::next() {
  std::unique_lock lock(impl_->mutex);
  impl_->seen.wait(lock, [&] {
    return impl_->first.number != impl_->handled || impl_->has_ended || !impl_->lost.empty() ||
           impl_->cancelled;
  });
  if (impl_->cancelled) throw InterruptedError();
  if (impl_->first.number != impl_->handled) {
    impl_->handled = impl_->first.number;
    impl_->progress.cancelled = false;
    impl_->progress.bytes_done = 0;
    if (impl_->stop) impl_->stop(false);
    return {impl_->first.word, impl_->first.text};
  }
  if (impl_->has_ended) return {Word::end, "0"};
  throw IoError({}, Member{0, impl_->first.host}.name() + " " + impl_->lost, 0);
}

Progress& Attendance::progress() {
  return impl_->progress;
}

void Attendance::on_stop(std::function<void(bool)> stop) {
  const std::lock_guard lock(impl_->mutex);
  impl_->stop = std::move(stop);
}

void Attendance::answer(const std::string& text) {
  impl_->reply(text, false);
}

void Attendance::fail(const std::exception& failure) {
  impl_->reply(encode_failure(failure), true);
}

}  // namespace dsckpt
