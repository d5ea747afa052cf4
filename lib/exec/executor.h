// The executor: runs a validated CopyPlan.
//
// The plan is cut into units, each a contiguous range of one output. A worker gathers a unit into
// its buffer with positional reads, casts and checksums on the way, and hands it to the Sink as one
// write, but for places of digests that are not known yet (patches.h). Memory is one buffer a
// worker, whatever the size of the model. A unit of a large output begins and ends at a multiple of
// the units' size, unless an element lies across it, and its memory begins as far behind a page as
// the unit behind a multiple of the page's size: so a sink can write it directly.
#pragma once

#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "dsckpt/run.h"
#include "exec/rate_limit.h"
#include "exec/record_checks.h"
#include "exec/sink.h"
#include "exec/units.h"
#include "io/input_file.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// The CRC32 of a part of an output, for the plan's digest of that number.
struct DigestPiece {
  uint64_t digest = 0;
  uint64_t begin = 0;  // in the output
  uint64_t size = 0;
  uint32_t crc = 0;
};
// Puts them in order; those of one digest that follow each other become one.
void join_pieces(std::vector<DigestPiece>& pieces);

// How far a run has come, so that another one can go on from there.
struct RunState {
  uint64_t unit_bytes = 0;  // ExecOptions::unit_bytes, by which the plan was cut
  // Those that are done, rising and apart, with the outputs that they complete, and no other.
  std::vector<BatchRange> done = {};
  uint64_t bytes_read = 0;
  uint64_t bytes_stored = 0;              // of packed outputs, by all ranks of a group
  std::vector<DigestPiece> digests = {};  // of outputs that are not finished
  std::vector<RecordPiece> records = {};
};

// What ExecOptions::unit_bytes may be: a power of two, a page at least, and no more than a
// gigabyte, since a thread has a unit in memory.
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
  // Where another run of the same plan, inputs, records and unit_bytes has come to; nullptr: begin.
  const RunState* from = nullptr;
  // Called between batches, by any thread, while nothing is read or written: when `save_every` has
  // passed, and `save_pause` times as long as the last call took.
  std::function<void(const RunState&)> save = {};
  std::chrono::milliseconds save_every{10'000};
  int save_pause = 10;
  // Call it only where every output is finished or has not begun.
  bool save_between_outputs = false;
};

// Throws CorruptError for batches that `units`, each of `unit_bytes`, cannot have.
void check_reached(const RunState& state, const Units& units, uint64_t unit_bytes);

class PlanRun;

// What the run of a part of a plan leaves to whoever runs the whole: checksums of outputs that are
// not all in it, and of records. Numbered as in the part.
struct PartSums {
  std::vector<DigestPiece> digests = {};
  std::vector<RecordPiece> records = {};
  uint64_t bytes_read = 0;
};
// The run of a part of a plan (PlanPart), which `cut` says the ends of, reporting to `checks`. The
// sink's finish() is called for every output of the part, also where more of it is written by
// others. All that it is given must outlive it.
class PartRun {
 public:
  PartRun(const CopyPlan& plan, const OutputCut& cut, uint64_t unit_bytes, RecordChecks& checks,
          const InputFiles& inputs, Sink& sink, RateLimit& limit, Progress& progress);
  ~PartRun();

  // Any thread, several at once: returns when nothing is left to begin. Throws what execute()
  // throws.
  void work();
  // Has work() return soon, with what is left undone. Any thread.
  void stop();
  // When all calls of work() have returned.
  PartSums sums();

 private:
  const ExecOptions options_;
  RecordChecks& checks_;
  std::unique_ptr<PlanRun> run_;
};

// Writes one output of `plan` alone, with its digests. No record is checked: whoever asks for it
// has done so when it was first written, and compares. Throws as execute().
void execute_one(const CopyPlan& plan, OutputId out, const InputFiles& inputs, Sink& sink,
                 Progress& progress, const ExecOptions& options);

// Runs `plan`, which must have passed validate(). Inputs are indexed by FileId. Throws what
// reading, writing and converting throw, CorruptError for a record whose CRC32 is wrong,
// InterruptedError; the sink may then have been given any part of the bytes. What `save` throws
// ends the run.
RunStats execute(const CopyPlan& plan, const InputFiles& inputs, Sink& sink, Progress& progress,
                 const ExecOptions& options = {});

}  // namespace dsckpt
