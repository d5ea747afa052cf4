// StepFiles: what the steps of a conversion leave for each other in its staging folder.
//
// A conversion in steps is one that goes on (journal.h), by processes that share nothing but that
// folder: one plans, any number work, one commits. `plan` says what there is to do, and `portions`
// has it, one after the other: Portion::encode(). `results/N` says what came of portion N, and is
// written when all that the portion has written is on the disk. `failed/N.HOST` says why there is
// none. Each is written beside itself and renamed, and has a checksum: who finds one finds all of
// it. `plan` is the last one that planning writes; without it nothing is planned.
//
// They are believed as the journal is: the folder is this user's, and nobody else may enter it. It
// must be the one that `plan` was written in, and no copy of it.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "exec/journal.h"
#include "exec/portion.h"
#include "exec/rank_words.h"
#include "io/folder.h"

namespace dsckpt {

// A command that makes the same plan again.
struct PlannedBy {
  std::string program = {};             // which version, of whom
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
  };
  std::vector<Entry> portions = {};
};

// Writes all of it, `plan` last. `portions`: those of plan.portions, one after the other. Sets
// plan.number. Throws IoError.
void save_plan(const Folder& folder, StepPlan plan, const std::string& portions);
// Whether save_plan() did.
bool has_plan(const Folder& folder);
// Which program made it; nothing if there is none. Throws UsageError if what is there is not this
// user's, IoError.
std::optional<std::string> planned_by(const Folder& folder);
// There must be one. Throws also for one that was damaged, and UsageError for one of another
// folder.
StepPlan load_plan(const Folder& folder);
// Throws also CorruptError.
Portion load_portion(const Folder& folder, const StepPlan& plan, size_t portion);

// Of a portion that is on the disk. Throws IoError.
void save_result(const Folder& folder, const StepPlan& plan, size_t portion,
                 const PortionResult& result);
bool has_result(const Folder& folder, size_t portion);
// Nothing if there is none. Throws IoError for one that is damaged or of another plan, and
// UsageError for what is not this user's.
std::optional<PortionResult> load_result(const Folder& folder, const StepPlan& plan,
                                         size_t portion);
// Adds the results of a plan to what its folder's journal says, as far as that does not have their
// batches, or some of them.
void add_results(const Folder& folder, Reached& reached);

// Why a portion has no result.
struct StepFailure {
  size_t portion = 0;
  std::string host = {};
  std::string failure = {};  // encode_failure()
  // Whether another host may do better; else the input is at fault.
  bool may_be_tried_again() const { return is_of_rank(failure); }
  // Throws it.
  [[noreturn]] void raise() const;
};
// Says so; not where that fails.
void save_failure(const Folder& folder, size_t portion, const std::exception& failure);
// Of portions that have no result; what is damaged is none.
std::vector<StepFailure> load_failures(const Folder& folder);

// The folder in `folder` that the files are in now, "files" and more: whoever goes on there gives
// it another name; "" if there is none. The same of packed files that are not whole.
std::string files_now(const Folder& folder);
std::string attempts_now(const Folder& folder);

// What a user means by `path`: a staging folder, or the output that one is for.
struct Steps {
  std::optional<Folder> place = {};   // that the folder is in
  std::optional<Folder> folder = {};  // with a job; nothing: there is none
  // Without one: what a process has left that was killed when it had just begun, or was at its end.
  std::optional<Folder> left_over = {};
  std::filesystem::path output = {};  // where the output is, or will be
  bool is_output_there = false;       // and something is in it, if it is a folder
};
// Throws UsageError for a folder that is not this user's.
Steps find_steps(const std::filesystem::path& path);
// The same, where something is planned. Throws UsageError where nothing is.
Steps find_planned(const std::filesystem::path& path);

// Removes the folder, or what is left of it, and what planning made for the output. Throws
// UsageError if somebody writes there, or has begun to publish; IoError.
void abandon_steps(const Steps& steps);

}  // namespace dsckpt
