// StepFiles: the files that the steps of a conversion leave for each other in the staging folder.
//
// A conversion in steps is a resumed one (journal.h), by processes that share nothing but that
// folder. One plans, any number work, one commits. `plan` describes the work, and `portions` has it
// as a sequence of Portion::encode(). `results/N` has the result of portion N. It is written when
// the portion's output is on the disk. `failed/N.HOST` has the reason why there is no result. Each
// file is written under another name and renamed, and has a checksum, so that readers find complete
// files. Planning writes `plan` last; without it nothing is planned.
//
// A launcher's ranks (rank_work.h) share any work by these files. `taken/N` names the rank that has
// begun N. Portions may be other tasks, that only read (RankJob::tasks).
//
// They are trusted like the journal: the folder is this user's, and nobody else may enter it. It
// must be the one that `plan` was written in, not a copy of it.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dsckpt/error.h"
#include "dsckpt/run.h"
#include "exec/journal.h"
#include "exec/portion.h"
#include "exec/rank_job.h"
#include "exec/shares.h"
#include "io/folder.h"
#include "io/output_file.h"

namespace dsckpt {

// A command that makes the same plan again.
struct PlannedBy {
  std::string program = {};             // its version and its origin
  std::vector<std::string> words = {};  // the tool and its arguments
  std::string folder = {};              // where it was called
};

struct StepPlan {
  PlannedBy by = {};
  std::vector<std::string> made_folders = {};  // for the output, outermost first
  RankJob job = {};                            // `place` is of the planner
  uint64_t unit_bytes = 0;
  uint64_t number = 0;  // that no other plan has
  struct Entry {
    BatchRange batches = {};
    uint64_t bytes = 0;  // that it writes, or reads only to check them
    uint64_t begin = 0;  // in `portions`
    uint64_t size = 0;
    uint32_t crc = 0;
    uint64_t share = 0;  // of which rank; they rise

    static void fields(auto& codec, auto& self) {
      codec(self.batches.first, self.batches.last, self.bytes, self.begin, self.size, self.crc,
            self.share);
    }
  };
  std::vector<Entry> portions = {};
};

// A plan that is there.
struct Planned {
  std::filesystem::path folder = {};
  size_t portions = 0;
  uint64_t bytes = 0;      // that they write, or read only to check them
  bool was_there = false;  // before, of the same job
};

// Writes a plan into a folder. It keeps no portion in memory. All functions throw IoError.
class PlanWriter {
 public:
  explicit PlanWriter(const Folder& folder);
  // Removes the portions, unless they were saved.
  ~PlanWriter();

  // Appends a portion, and fills in its place in the file.
  void add(StepPlan::Entry entry, std::string_view portion);
  // Appends everything, share by share. Throws InterruptedError.
  void add(const Shares& shares, const std::function<std::string(const BatchRange&)>& encode,
           const Progress& progress);
  // Names all files, `plan` last, and removes those of an earlier plan. Sets plan.number and
  // plan.portions. Syncs the files if plan.job.sync_results is set. For one call.
  Planned save(StepPlan plan);

 private:
  const Folder folder_;
  OutputFile file_;
  uint64_t size_ = 0;
  std::vector<StepPlan::Entry> portions_ = {};
};
// True if a plan was saved there.
bool has_plan(const Folder& folder);
// The program that made the plan; nothing if there is none. Throws IoError, and UsageError if the
// file is not this user's.
std::optional<std::string> planned_by(const Folder& folder);
// Loads the plan, which must exist. Throws as planned_by(), also for a damaged plan, and UsageError
// for one of another folder.
StepPlan load_plan(const Folder& folder);
// The bytes of a portion. Throws as load_plan(), and CorruptError.
std::string load_task(const Folder& folder, const StepPlan& plan, size_t portion);
Portion load_portion(const Folder& folder, const StepPlan& plan, size_t portion);

// The result of a PieceTask that fails in any process. The process that asks does it again, and
// throws the error.
inline constexpr std::string_view kNoAnswers = "";

// Saves the result of a portion, whose output is on the disk, and the rank that has it. Throws
// IoError.
void save_result(const Folder& folder, const StepPlan& plan, size_t portion,
                 const std::string& result, int rank = 0);
bool has_result(const Folder& folder, size_t portion);
struct StepResult {
  // PortionResult::encode() of portions, or encode_answers() of a PieceTask.
  std::string bytes = {};
  int rank = 0;
};
// Nothing if there is none. Throws IoError for a result that is damaged or of another plan, and
// UsageError for a file that is not this user's.
std::optional<StepResult> load_result(const Folder& folder, const StepPlan& plan, size_t portion);
// The portions that have a result, and those that a rank has begun.
std::vector<bool> with_results(const Folder& folder, const StepPlan& plan);
std::vector<bool> taken(const Folder& folder, const StepPlan& plan);
// Adds the results of a plan to its folder's journal, as far as that lacks their batches. Returns
// the progress of each rank with them, by number, without their hosts.
std::vector<RankStats> add_results(const Folder& folder, Reached& reached);

// Makes `taken/N`; false if another rank has. Throws IoError.
bool take_portion(const Folder& folder, size_t portion, int rank);
// Nothing if no rank has, or the one that has was killed before it had said so.
std::optional<int> taker_of(const Folder& folder, size_t portion);

// The reason why a portion has no result.
struct StepFailure {
  size_t portion = 0;
  std::string host = {};
  std::string failure = {};  // encode_failure()
  // True if another host may succeed; else the input is at fault.
  bool may_be_tried_again() const { return is_of_rank(failure); }
  // Throws it.
  [[noreturn]] void raise() const;
};
// Saves the failure; ignores errors.
void save_failure(const Folder& folder, size_t portion, const std::exception& failure);
// The failures of portions that have no result; damaged files do not count.
std::vector<StepFailure> load_failures(const Folder& folder);

// The present name of the folder's subfolder for files, "files" and more; "" if there is none. A
// process that resumes there renames it. The same for incomplete packed files.
std::string files_now(const Folder& folder);
std::string attempts_now(const Folder& folder);

// The folders that a user's `path` stands for: a staging folder, or the output of one.
struct Steps {
  std::optional<Folder> place = {};   // that the folder is in
  std::optional<Folder> folder = {};  // with a job; nothing: there is none
  // Without a job: left-overs of a process that was killed at its very beginning or end.
  std::optional<Folder> left_over = {};
  std::filesystem::path output = {};  // where the output is, or will be
  bool is_output_there = false;       // and something is in it, if it is a folder

  // Looks whether steps have committed the output, or a run with --resume. On file systems without
  // extended attributes any folder counts that a tool may have written: it has files of tensors or
  // packed files.
  bool is_committed() const;
};
// Throws UsageError for a folder that is not this user's.
Steps find_steps(const std::filesystem::path& path);
// The same for a planned conversion. Throws UsageError if nothing is planned.
Steps find_planned(const std::filesystem::path& path);

// The plan in `folder` for `output`, which must be of this job: else UsageError.
Planned planned_before(const Folder& folder, const JobIdentity& identity,
                       const std::filesystem::path& output);

// Removes the folder, or the rest of it, and the folders that planning made for the output. Throws
// IoError, and UsageError if somebody writes there, or has begun to publish.
void abandon_steps(const Steps& steps);

}  // namespace dsckpt
