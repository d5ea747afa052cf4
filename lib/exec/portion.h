// Portion: batches of a plan that follow each other, as work for any rank of a group.
//
// A rank that does a portion needs nothing else of the plan, and no file's metadata: where every
// byte comes from is in it. A portion is cut between batches (units.h); the outputs at its ends may
// be others' as well.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "exec/executor.h"
#include "exec/output_sums.h"
#include "exec/packed_output.h"
#include "exec/rate_limit.h"
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

// What came of a portion, numbered as in the whole plan.
struct PortionResult {
  BatchRange batches = {};
  PartSums sums = {};
  OutputSums::State written = {};  // where what was written is read back, or kept for another run
  uint64_t bytes_stored = 0;       // of packed outputs

  std::string encode() const;
  static PortionResult decode(std::string_view bytes);
};

// Cuts portions out of a run. All it is given must outlive it. Any thread.
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

// How portions are run.
struct PortionOptions {
  unsigned threads = 0;
  uint64_t limit_rate = 0;
  std::optional<int> pack = {};  // PackedOutput's level
  // Of all outputs of the whole run, for PackedOutput; or empty.
  std::vector<std::optional<Sha256Digest>> sha256 = {};
  bool keep_sums = false;  // fill in PortionResult::written
};

// A portion on its way.
class PortionRun {
 public:
  // `inputs`: of the portion, in the order of `part.files`. `make_sink` gives the sink of the
  // part's outputs, which may borrow the part. `limit` and `progress` must outlive this.
  PortionRun(Portion portion, InputFiles inputs,
             const std::function<std::unique_ptr<Sink>(const PlanPart&)>& make_sink,
             RateLimit& limit, Progress& progress, const PortionOptions& options);

  const BatchRange& batches() const { return portion_.batches; }
  // PartRun's.
  void work();
  void stop();
  // Once, when all calls of work() have returned.
  PortionResult result();

 private:
  Portion portion_;
  const InputFiles inputs_;
  const std::unique_ptr<Sink> sink_;
  std::optional<OutputSums> sums_;
  std::optional<PackedOutput> packed_;
  RecordChecks checks_;
  std::optional<PartRun> run_;
};

// Runs portions on `threads` (0: default_threads()), all of them on one; when it has nothing left
// to begin they go on with the next one, while the last of them end it. So the disk is not left
// idle between two. `next` may wait, and gives nullptr when there are none any more; `done` is told
// of each. Both are called by any thread, `next` by one at a time. Throws what they and work()
// throw; of the latter `failed`, if it is not empty, is told before.
using OnPortionFailed = std::function<void(const BatchRange&, const std::exception&)>;
void run_portions(unsigned threads, const std::function<std::unique_ptr<PortionRun>()>& next,
                  const std::function<void(PortionResult)>& done,
                  const OnPortionFailed& failed = {});

// A portion, and its inputs in the order of `part.files`.
struct PortionTask {
  Portion portion;
  InputFiles inputs;
};
// The same of portions whose outputs are staged at `place`; nullopt: there are none any more.
void run_staged_portions(const StagingPlace& place, const PortionOptions& options,
                         Progress& progress,
                         const std::function<std::optional<PortionTask>()>& next,
                         const std::function<void(PortionResult)>& done,
                         const OnPortionFailed& failed = {});

}  // namespace dsckpt
