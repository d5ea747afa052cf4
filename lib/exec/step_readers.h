// StepReaders: passes over files in steps (step_files.h). One process plans them, any number of
// processes work, and one takes the answers.
//
// The answers to one pass decide what the next one asks: nothing about a damaged tensor. So the
// planner plans all that may be asked. The last process asks again, and finds the answers by what
// was asked. It reads itself what nobody has answered, so its report is that of a single process.
//
// The folder is `.dsckpt-staging-resume` in a folder of the user's choice, which holds nothing
// else. It stays as it is, so the answers can be taken any number of times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/keyed_hash.h"
#include "exec/job_inputs.h"
#include "exec/piece_task.h"
#include "exec/rank_inputs.h"
#include "exec/reading.h"
#include "exec/step_files.h"
#include "io/folder.h"

namespace dsckpt {

class PassPlanner : public Readers {
 public:
  bool only_plan() const override { return true; }
  JobInputs& inputs() override { return inputs_; }
  void read(PieceWork& work, const Reading& reading) override;

  // Saves the plan of all passes so far in a new or empty folder at `path`, or finds it there.
  // `portions`: about so many; 0: as many as suit. Throws UsageError for any other folder, and for
  // inputs in an object store; IoError.
  Planned save(const std::filesystem::path& path, const PlannedBy& by, uint64_t portions);

 private:
  struct Pass {
    PieceTask task;
    std::vector<uint64_t> bytes;  // of each piece
  };
  void cut(uint64_t portions, PlanWriter& writer) const;

  JobInputs inputs_;
  std::vector<Pass> passes_ = {};
};

class PassAnswers : public Readers {
 public:
  // Takes the answers in `folder`. Throws as load_plan() and load_result().
  explicit PassAnswers(Folder folder);

  JobInputs& inputs() override { return inputs_; }
  void read(PieceWork& work, const Reading& reading) override;

 private:
  struct Place {
    size_t portion;
    size_t number;  // of the piece in it
  };
  std::optional<std::string> answer_to(const PieceTask& task);

  const Folder folder_;
  const StepPlan plan_;
  JobInputs inputs_;
  RankInputs opened_;
  KeyedMap<std::string, Place> places_ = {};
  std::vector<size_t> pieces_ = {};  // in each portion
  // The portion whose answers were taken last.
  std::optional<size_t> loaded_ = {};
  std::vector<std::string> answers_ = {};
};

}  // namespace dsckpt
