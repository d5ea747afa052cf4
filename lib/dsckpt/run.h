// Run: how a planned job is carried out, and how it is watched.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dsckpt/export.h"

namespace dsckpt {

class Job;

enum class IoMode : uint8_t {
  automatic,  // direct where write-back would slow a buffered run down
  buffered,   // through the page cache, where what was written stays for the next reader
  direct,     // past it: at the speed of the disk, and nothing is left to be written back
};

// How files on Lustre are spread over its disks.
struct Striping {
  int count = -1;      // disks (OSTs); -1: all
  uint64_t bytes = 0;  // of a stripe: a power of two, 64 KiB at least; 0: as long as suits the run
};

struct RunOptions {
  unsigned threads = 0;  // 0: one a core, and as many more as keep a disk busy
  IoMode io = IoMode::automatic;
  // Check the CRC32 of every record of the input, not only of those that are read whole anyway.
  bool verify = false;
  // Write packed files (`ckpt-pack pack`), at this level of zstd.
  std::optional<int> pack = {};
  // Replace what is in the output's place.
  bool force = false;
  // Wait until the data is on the disk before it gets its final names (fsync).
  bool durable = false;
  // Read everything back before it gets its final name, from the disk where the file system lets
  // it, and compare it with what was meant.
  bool verify_output = false;
  // Bytes a second that are written, or read only to be checked. 0: as many as there can be.
  uint64_t limit_rate = 0;
  // Keep what is done if the run stops, in a folder beside the output or in it, and go on with what
  // a run of the same job has kept there: its inputs must be as they were. What is done is made
  // sure of (synced) every `save_every`, and at most a tenth of the time.
  bool resume = false;
  // Of the output, which must be on Lustre, and only where `lfs` is in PATH.
  std::optional<Striping> stripe = {};
  std::chrono::milliseconds save_every{10'000};
};

// Shared with whoever shows progress or asks to stop. Any thread.
struct Progress {
  std::atomic<uint64_t> bytes_done{0};   // written, or read only to be checked; read back, too
  std::atomic<uint64_t> bytes_total{0};  // set when the run begins
  std::atomic<bool> cancelled{false};    // set it to stop: the run throws InterruptedError
  // While a source is opened and planned: files whose metadata was read, of those known so far.
  std::atomic<uint64_t> files_done{0};
  std::atomic<uint64_t> files_total{0};
  // Of a run by several processes: the one that the others are ahead of, or wait for; -1: none.
  std::atomic<int> slowest_rank{-1};
};

// What one of several processes that ran a job together has done of it.
struct RankStats {
  std::string host = {};
  uint64_t bytes_read = 0;
  uint64_t bytes_done = 0;  // written, or read only to be checked
  // Between it and rank 0, as it has sent and received them; of rank 0 with all others.
  uint64_t messages_sent = 0;
  uint64_t messages_received = 0;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
};

struct RunStats {
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  uint64_t bytes_stored = 0;       // less than were written if the outputs are packed
  uint64_t records_checked = 0;    // whose CRC32 was compared
  uint64_t records_unchecked = 0;  // of which too little was read to read the rest
  // Of what the plan reads, in files that have no checksums: safetensors, swap files, torch's old
  // files and texts, unless they are packed.
  uint64_t bytes_without_checksum = 0;
  // Whether anything that was read has a checksum.
  bool has_checksums = true;
  uint64_t bytes_verified = 0;  // read back from the output
  uint64_t bytes_kept = 0;      // of bytes_written: by the run that this one has gone on with
  double seconds = 0;
  std::vector<RankStats> ranks = {};  // by number; empty of a run by one process
  // What a user should know of the place: left-overs of other runs there, what could not be
  // removed, and what may not be on the disk yet.
  std::vector<std::string> notes = {};
};

// Given the bytes done and those there are: about ten times a second, by another thread, and once
// when all is committed, by the one that called run(). False asks the run to stop, and so does an
// exception, which leaves run() in the place of InterruptedError.
using ProgressCallback = std::function<bool(uint64_t done, uint64_t total)>;

// Runs `job` into the folder `output` and commits: the files get their final names when all of them
// are complete. On any exception nothing of it is left behind but what RunOptions::resume keeps,
// or, where not all old files could be put back, the message says of each what is there. Throws
// UsageError if `output` is no place for it, or what is kept there is of another job, CorruptError
// for a record whose CRC32 is wrong, IoError, InterruptedError when `progress` asked to stop, and
// what `progress` throws: if that comes when all is committed, the output stays.
DSCKPT_EXPORT RunStats run(const Job& job, const std::filesystem::path& output,
                           const RunOptions& options = {}, const ProgressCallback& progress = {});

}  // namespace dsckpt
