// The files of a resharded checkpoint, as an engine of the target run would have saved them.
// Layouts: checkpoint/LAYOUTS.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "format/torch_archive.h"
#include "plan/copy_plan.h"
#include "reshard/target.h"

namespace dsckpt {

struct ShardSource;

// How a parameter group is cut. Counts are elements of one rank, 0 at stage 0.
struct ReshardedGroup {
  uint32_t mp_rank = 0;
  uint32_t ep = 1;  // expert-parallel ranks, each of which has other parameters of it
  // For one expert-parallel rank:
  size_t params = 0;
  uint64_t numel = 0;      // of all its parameters
  uint64_t partition = 0;  // that a rank has of it, padding included
  size_t sub_groups = 0;   // stage 3
};

// Adds the model-states and optimizer-states files of all ranks as FOLDER/NAME to `plan`. `source`
// has to be open with its optimizer states. Adds notes on its parts that have no place in the new
// files. Throws UnsupportedError and InconsistentError for values that cannot be cut anew
// faithfully.
std::vector<ReshardedGroup> lay_out_shards(PlanBuilder& plan, const Checkpoint& source,
                                           const ReshardTarget& target, const std::string& folder,
                                           std::vector<std::string>& notes);

// The two files that a rank reads, without places of their own.
struct RankFiles {
  TorchArchiveWriter::Written model;
  // At stage 0 only of a model with experts, whose `model` then has none.
  std::optional<TorchArchiveWriter::Written> optimizer;
  // True if the trained parameters in `model` can be made of the masters, rounded to their types.
  bool weights_are_masters = false;
};

// Makes these for each rank of a target. Any thread.
class FilesOfRanks {
 public:
  // Otherwise as lay_out_shards(). Both must outlive it.
  FilesOfRanks(const Checkpoint& source, const ReshardTarget& target);
  ~FilesOfRanks();
  FilesOfRanks(const FilesOfRanks&) = delete;
  FilesOfRanks& operator=(const FilesOfRanks&) = delete;

  // Those of a data-parallel rank, with further entries of `module`.
  RankFiles of(uint32_t rank, std::span<const ModuleEntry> more) const;
  std::vector<std::string> notes() const;

 private:
  std::unique_ptr<const ShardSource> from_;
};

}  // namespace dsckpt
