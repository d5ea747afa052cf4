// Meeting: the processes that a launcher has started with one command line, called ranks, work for
// rank 0.
//
// They share a folder of their user's, and nothing else. Each rank has a note in it, which it alone
// writes and renews every second: so the others know that it lives. The others read rank 0's note,
// and rank 0 those of all. Rank 0's has its last word, which is what all others are to do; theirs
// have their answer to it. Rank 0 welcomes each new rank first, so nobody obeys a note that an
// earlier run has left.
//
// Nobody waits for a rank that is away: one that has not come, has left, was killed, or is silent.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/launch.h"
#include "dsckpt/run.h"
#include "io/folder.h"

namespace dsckpt {

class FileClient;

struct MeetingOptions {
  bool alone = false;  // whatever has started this process
  // A rank whose note is as old as that is away.
  std::chrono::seconds silence{60};
  std::string program = {};  // name and version: that of all ranks
};

// The wishes of rank 0 to all others.
enum class Word : uint8_t {
  nothing,  // stop the current task
  look,     // at these folders (node_files.h)
  serve,    // your files, to those who have this token
  work,     // with me on the tasks in this folder (rank_work.h)
  end,      // with this exit status
};

// For rank 0. Any thread.
class Meeting {
 public:
  // Throws IoError, and UsageError if the ranks cannot find each other.
  Meeting(const Launch& launch, const MeetingOptions& options, const Environment& environment);
  // Removes the folder.
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  int size() const;
  Member member(int rank) const;  // its host is "" before it has come
  const std::string& program() const;
  std::chrono::seconds silence() const;
  // True if that rank has come, is not away, and has not done the last word yet.
  bool is_at_work(int rank) const;

  // Says a word, in the place of the one before.
  void say(Word word, const std::string& text);
  // Throws the error of a rank that cannot do what was said last, and UsageError for a rank that
  // runs another program. The errors of files have no name in front, unless `names` is set.
  void check(bool names) const;
  // Says a word, and returns the answers of all that are not away, by rank. Waits for ranks that
  // have not come yet. Throws as check(), and InterruptedError.
  std::map<int, std::string> ask(Word word, const std::string& text, const Progress& progress);
  // Tells all ranks to stop their current task, and returns when all have done so.
  void stop();
  // Says with which status to end, and returns when all have heard it.
  void end(int status);

  // A new folder for files of all ranks, with a name of its own. Throws IoError.
  Folder make_folder();
  void remove_folder(const Folder& folder);

  // How rank 0 reads files that only other nodes have; nullptr: all ranks see the same files.
  std::shared_ptr<FileClient> files() const { return files_; }
  const std::string& servers() const { return servers_; }  // RankJob::servers
  void set_files(std::shared_ptr<FileClient> files, std::string servers);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::shared_ptr<FileClient> files_ = {};
  std::string servers_ = {};
};

// For the other ranks. One thread.
class Attendance {
 public:
  // Returns when rank 0 has welcomed this rank. Throws IoError if it does not in half a minute,
  // UsageError as Meeting, and InterruptedError when `cancelled` is set.
  Attendance(const Launch& launch, const MeetingOptions& options, const Environment& environment,
             const std::atomic<bool>& cancelled);
  // Leaves.
  ~Attendance();
  Attendance(const Attendance&) = delete;
  Attendance& operator=(const Attendance&) = delete;

  struct Order {
    Word word = Word::nothing;
    std::string text = {};
  };
  // Returns the next word of rank 0. If it has ended without this rank, that is Word::end with
  // status 0. Throws IoError if rank 0 is lost, InterruptedError.
  Order next();
  // The progress of that order. It is cancelled if rank 0 has said something else, or is lost.
  Progress& progress();
  // Called with true when it is cancelled, and with false at the next order; by another thread.
  void on_stop(std::function<void(bool)> stop);
  void answer(const std::string& text);
  void fail(const std::exception& failure);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsckpt
