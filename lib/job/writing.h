// Writes the outputs of a job, before they are committed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "dsckpt/run.h"
#include "exec/commit.h"
#include "exec/io_choice.h"
#include "exec/journal.h"
#include "exec/output.h"
#include "exec/output_sums.h"
#include "exec/packed_output.h"
#include "exec/rank_job.h"
#include "exec/rank_readers.h"
#include "exec/read_back.h"
#include "exec/record_checks.h"
#include "exec/shares.h"
#include "exec/step_files.h"
#include "exec/units.h"
#include "format/checked_records.h"
#include "job/content_hash.h"
#include "job/job_impl.h"
#include "job/sharing.h"

namespace dsckpt {

// Returns every record of which the plan reads a byte, whichever tool made the plan. With `all`,
// returns every record of the checkpoint.
std::vector<InputRecord> records_to_check(const Job::Impl& job, bool all,
                                          Frames frames = Frames::checked);

// One run of a job into `output`, which has been prepared. All arguments must outlive it. One
// thread; the steps and errors are those of run() in run_job.h.
class Writing {
 public:
  Writing(const Job::Impl& job, const RunOptions& options, const IoChoice& io, Output& output,
          const OtherRanks* others);

  // Runs everything but the commit.
  RunStats operator()(Progress& progress);

  // Writes the part of the plan that other processes will run. Finished work is in the journal.
  Planned plan(const PlannedBy& by, uint64_t wanted, Progress& progress);

  // Returns callbacks for the commit. `stats` counts the bytes that are read back.
  CommitHelp help(RunStats& stats, Progress& progress);

 private:
  // So many of the last bytes that the earlier run wrote are read back.
  static constexpr uint64_t kCheckedAgain = uint64_t{256} << 20;
  void load_before();
  // `wanted`: about so many portions; 0: as many as suit.
  Planned plan_rest(const PlannedBy& by, ShareOptions share, uint64_t wanted, Progress& progress);
  // The rank that has the file which most bytes of a batch come from.
  int owner_of(const RankJob& job, const Units& units, const RecordChecks& checks,
               uint64_t batch) const;
  // All ranks write what is left. Afterwards before_ has it, and execute() joins the checksums.
  std::vector<RankStats> work_with_others(Progress& progress);
  Reading reading(unsigned threads, Progress& progress);
  static std::vector<MeantFile> in_folder(const std::optional<Folder>& folder,
                                          std::vector<MeantFile> files);
  void take_over();
  // Returns the hashes for packed files. The earlier run hashed what it wrote, and had compared all
  // inputs before.
  ContentHashes hashes(Progress& progress);
  // Writes the same bytes again, from records that were checked. The output compares them.
  void write_again(OutputId out);
  void set_sink();
  void save(const RunState& reached);
  RankJob rank_job() const;
  uint64_t bytes_stored() const;

  const Job::Impl& job_;
  const RunOptions& options_;
  const IoChoice& io_;
  Output& output_;
  const OtherRanks* const others_;
  std::optional<RankReaders> readers_;  // all ranks
  ContentHashes hashes_;                // to be kept in packed files
  std::optional<OutputSums> sums_;
  std::optional<PackedOutput> packed_;
  Sink* sink_ = nullptr;  // the first one in the chain
  std::optional<Reached> before_;
  uint64_t bytes_kept_ = 0;
};

}  // namespace dsckpt
