// Run: carries out a planned job, and reports its progress.
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
  // Check the CRC32 of every record of the input, not only of those that the job reads whole.
  bool verify = false;
  // Write packed files (`ckpt-pack pack`), at this zstd level.
  std::optional<int> pack = {};
  // Replace an existing output.
  bool force = false;
  // Sync the data to disk (fsync) before the files get their final names.
  bool durable = false;
  // Read every file back before it gets its final name, and compare it with the planned bytes. It
  // is read from the disk where the file system allows that.
  bool verify_output = false;
  // Most bytes a second that are written, or read only to be checked. 0: no limit.
  uint64_t limit_rate = 0;
  // Keep the finished part if the run stops, in a folder beside the output or in it. Continue from
  // the part that a run of the same job kept there; its inputs must be unchanged. Progress is
  // synced to disk every `save_every`, and for at most a tenth of the time.
  bool resume = false;
  // The striping of the output, which must be on Lustre. Used only if `lfs` is in PATH.
  std::optional<Striping> stripe = {};
  std::chrono::milliseconds save_every{10'000};
};

// Shared between the run and the caller, who shows progress or asks to stop. Any thread.
struct Progress {
  std::atomic<uint64_t> bytes_done{0};   // written, or read only to be checked; read back, too
  std::atomic<uint64_t> bytes_total{0};  // set when the run begins
  std::atomic<bool> cancelled{false};    // set it to stop: the run throws InterruptedError
  // While a source is opened and planned: files whose metadata was read, and files known so far.
  std::atomic<uint64_t> files_done{0};
  std::atomic<uint64_t> files_total{0};
  // In a run by several processes: the rank that the others are ahead of, or wait for. -1: none.
  std::atomic<int> slowest_rank{-1};
};

// The work of one of several processes that ran a job together.
struct RankStats {
  std::string host = {};
  uint64_t bytes_read = 0;
  uint64_t bytes_done = 0;  // written, or read only to be checked
};

struct RunStats {
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  uint64_t bytes_stored = 0;       // less than were written if the outputs are packed
  uint64_t records_checked = 0;    // whose CRC32 was compared
  uint64_t records_unchecked = 0;  // read in too small a part to check the rest
  // Bytes of the plan's reads in files without checksums: safetensors, swap files, torch's legacy
  // files and texts, unless they are packed.
  uint64_t bytes_without_checksum = 0;
  // False if nothing that was read has a checksum.
  bool has_checksums = true;
  uint64_t bytes_verified = 0;  // read back from the output
  uint64_t bytes_kept = 0;      // of bytes_written: those of the run that this one resumed
  double seconds = 0;
  std::vector<RankStats> ranks = {};  // by number; empty of a run by one process
  // Notes about the output folder for the user. They report left-overs of other runs there, files
  // that could not be removed, and data that may not be on the disk yet.
  std::vector<std::string> notes = {};
};

// Called with the bytes done and the total, about ten times a second, by another thread. The thread
// that called run() calls it once more after the commit. If it returns false, the run stops. An
// exception stops it too, and leaves run() instead of InterruptedError.
using ProgressCallback = std::function<bool(uint64_t done, uint64_t total)>;

// Runs `job` into the folder `output` and commits: the files get their final names when all of them
// are complete. After an exception nothing remains but the part that RunOptions::resume keeps. If
// not all old files could be put back, the message names the files that remain. Throws UsageError
// if `output` cannot be the place for the job, or the part kept there belongs to another job.
// Throws CorruptError for a record whose CRC32 is wrong, IoError, and InterruptedError when
// `progress` asked to stop. Exceptions of `progress` leave run() too; the output stays if one comes
// after the commit.
DSCKPT_EXPORT RunStats run(const Job& job, const std::filesystem::path& output,
                           const RunOptions& options = {}, const ProgressCallback& progress = {});

}  // namespace dsckpt
