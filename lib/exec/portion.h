// Portion: consecutive batches of a plan, as work for any rank or worker.
//
// A portion is complete: it has the source of every byte. A rank needs nothing else of the plan for
// it, and no file's metadata. A portion is cut between batches (units.h), so the outputs at its
// ends may be shared with other portions.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/rate_limit.h"
#include "exec/executor.h"
#include "exec/output_sums.h"
#include "exec/packed_output.h"
#include "exec/record_checks.h"
#include "exec/staged_files.h"
#include "exec/units.h"
#include "io/input_file.h"
#include "plan/plan_part.h"

namespace dsckpt {

struct Portion {
  BatchRange batches = {};
  uint64_t unit_bytes = 0;
  PlanPart part = {};
  OutputCut cut = {};
  RecordUse use = {};                  // by the numbers of `records`
  std::vector<uint32_t> records = {};  // of each: its number in the whole run

  std::string encode() const;
  // Throws CorruptError.
  static Portion decode(std::string_view bytes);
};

// The result of a portion, with the numbers of the whole plan.
struct PortionResult {
  BatchRange batches = {};
  PartSums sums = {};
  OutputSums::State written = {};  // where what was written is read back, or kept for another run
  uint64_t bytes_stored = 0;       // of packed outputs
  SentWork sent = {};

  std::string encode() const;
  static PortionResult decode(std::string_view bytes);
};

// Cuts portions out of a run. All arguments must outlive it. Any thread.
class PortionCutter {
 public:
  PortionCutter(const CopyPlan& plan, const Units& units, const RecordUse& use,
                uint64_t unit_bytes);

  Portion cut(const BatchRange& batches) const;

 private:
  void add_outputs(Portion& portion, size_t first_item, size_t last_item) const;
  void add_records(Portion& portion, size_t first_item) const;

  const CopyPlan& plan_;
  const Units& units_;
  const RecordUse& use_;
  const uint64_t unit_bytes_;
  std::vector<uint64_t> digests_;  // all of the plan's, in the order of their outputs
};

// Options for running portions.
struct PortionOptions {
  unsigned threads = 0;
  uint64_t limit_rate = 0;
  std::optional<int> pack = {};  // PackedOutput's level
  // The hashes of all outputs of the whole run, for PackedOutput; or empty.
  std::vector<std::optional<Sha256Digest>> sha256 = {};
  bool keep_sums = false;  // fill in PortionResult::written

  // Without the threads, which are each process's own.
  static void fields(auto& codec, auto& self) {
    codec(self.limit_rate, self.pack, self.sha256, self.keep_sums);
  }
};

// A running portion.
class PortionRun {
 public:
  // `inputs` are the portion's, in the order of `part.files`. `make_sink` makes the sink of the
  // part's outputs, which may borrow the part. `limit` and `progress` must outlive this.
  PortionRun(Portion portion, InputFiles inputs,
             const std::function<std::unique_ptr<StagingSink>(const PlanPart&)>& make_sink,
             RateLimit& limit, Progress& progress, const PortionOptions& options);

  const BatchRange& batches() const { return portion_.batches; }
  // As PartRun::work().
  void work();
  void stop();
  // Call it once, when all calls of work() have returned.
  PortionResult result();

 private:
  Portion portion_;
  const InputFiles inputs_;
  const std::unique_ptr<StagingSink> sink_;
  std::optional<OutputSums> sums_;
  std::optional<PackedOutput> packed_;
  RecordChecks checks_;
  std::optional<PartRun> run_;
};

// Runs portions on `threads` (0: default_threads()), all threads on the same one. Threads without
// work begin the next portion while others finish the last, so the disk is never idle. `next` may
// wait. It returns nullptr when none are left. `done` is called for each portion. Any thread calls
// them, `next` one at a time. Throws the errors of both and of work(). Errors of work() are first
// passed to `failed`, if it is not empty.
using OnPortionFailed = std::function<void(const BatchRange&, const std::exception&)>;
void run_portions(unsigned threads, const std::function<std::unique_ptr<PortionRun>()>& next,
                  const std::function<void(PortionResult)>& done,
                  const OnPortionFailed& failed = {});

// A portion, and its inputs in the order of `part.files`.
struct PortionTask {
  Portion portion;
  InputFiles inputs;
};
// The same for portions whose outputs are staged at `place`; nullopt: no portions are left.
void run_staged_portions(const StagingPlace& place, const PortionOptions& options,
                         Progress& progress,
                         const std::function<std::optional<PortionTask>()>& next,
                         const std::function<void(PortionResult)>& done,
                         const OnPortionFailed& failed = {});

}  // namespace dsckpt
