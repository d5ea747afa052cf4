// The executor: runs a validated CopyPlan.
//
// The plan is cut into units, each a contiguous range of one output. A worker gathers a unit into
// its buffer with positional reads, and casts and checksums it on the way. It hands the unit to the
// Sink as one write, except for places of digests that are not known yet (patches.h). Memory is one
// buffer for each worker, whatever the size of the model. A unit of a large output begins and ends
// at a multiple of the units' size, unless an element lies across it. Its memory has the same
// offset in a page as the unit in the output, so that a sink can write it directly.
#pragma once

#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/rate_limit.h"
#include "dsckpt/run.h"
#include "exec/record_checks.h"
#include "exec/sink.h"
#include "exec/units.h"
#include "io/input_file.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// The CRC32 of a part of an output, for the digest of that number in the plan.
struct DigestPiece {
  uint64_t digest = 0;
  uint64_t begin = 0;  // in the output
  uint64_t size = 0;
  uint32_t crc = 0;
};
// Sorts the pieces, and joins neighbours of the same digest.
void join_pieces(std::vector<DigestPiece>& pieces);

// The progress of a run, from which another run can resume.
struct RunState {
  uint64_t unit_bytes = 0;  // ExecOptions::unit_bytes, by which the plan was cut
  // Finished batches, rising and apart. Outputs that they complete are finished, and no others.
  std::vector<BatchRange> done = {};
  uint64_t bytes_read = 0;
  std::vector<DigestPiece> digests = {};  // of outputs that are not finished
  std::vector<RecordPiece> records = {};
};

// True for a valid ExecOptions::unit_bytes: a power of two, at least a page and at most a gigabyte.
// Each thread has a unit in memory.
constexpr bool is_unit_size(uint64_t bytes) {
  return std::has_single_bit(bytes) && bytes >= 4 << 10 && bytes <= 1 << 30;
}

struct ExecOptions {
  unsigned threads = 0;             // 0: default_threads()
  uint64_t unit_bytes = 256 << 10;  // is_unit_size()
  // Records of the inputs with a known CRC32. Those that the plan reads whole are checked.
  std::vector<InputRecord> records = {};
  // Check all of `records`, also those that the plan does not need.
  bool check_all_records = false;
  // Bytes a second that are written, or read only to be checked; 0: no limit.
  uint64_t limit_rate = 0;
  // The progress of another run of the same plan, inputs, records and unit_bytes; nullptr: start
  // anew.
  const RunState* from = nullptr;
  // Called between batches, by any thread, while nothing is read or written. `save_every` must have
  // passed, and `save_pause` times the duration of the last call.
  std::function<void(const RunState&)> save = {};
  std::chrono::milliseconds save_every{10'000};
  int save_pause = 10;
  // Call it only when every output is finished or not begun.
  bool save_between_outputs = false;
};

// Throws CorruptError for batches that `units`, of `unit_bytes` each, cannot have.
void check_reached(const RunState& state, const Units& units, uint64_t unit_bytes);

class PlanRun;

// The results of a part of a plan for the run of the whole. These are checksums of outputs that are
// only partly in it, and of records, with the part's numbers.
struct PartSums {
  std::vector<DigestPiece> digests = {};
  std::vector<RecordPiece> records = {};
  uint64_t bytes_read = 0;
};
// Runs a part of a plan (PlanPart), with the ends in `cut`, and reports to `checks`. The sink's
// finish() is called for every output of the part, even if others write more of it. All arguments
// must outlive it.
class PartRun {
 public:
  PartRun(const CopyPlan& plan, const OutputCut& cut, uint64_t unit_bytes, RecordChecks& checks,
          const InputFiles& inputs, Sink& sink, RateLimit& limit, Progress& progress);
  ~PartRun();

  // Works until nothing is left to begin. Any thread, several at once. Throws as execute().
  void work();
  // Makes work() return soon, with the rest undone. Any thread.
  void stop();
  // Call it when all calls of work() have returned.
  PartSums sums();

 private:
  const ExecOptions options_;
  RecordChecks& checks_;
  std::unique_ptr<PlanRun> run_;
};

// Writes one output of `plan` alone, with its digests. Checks no record: the first write of the
// output checked them, and the caller compares the result. Throws as execute().
void execute_one(const CopyPlan& plan, OutputId out, const InputFiles& inputs, Sink& sink,
                 Progress& progress, const ExecOptions& options);

// Runs `plan`, which must have passed validate(). Inputs are indexed by FileId. Throws the errors
// of reading, writing and converting, CorruptError for a record whose CRC32 is wrong, and
// InterruptedError. The sink may then have got any part of the bytes. An exception of `save` ends
// the run.
RunStats execute(const CopyPlan& plan, const InputFiles& inputs, Sink& sink, Progress& progress,
                 const ExecOptions& options = {});

}  // namespace dsckpt
