// Reshard: native ZeRO files for another number of data-parallel ranks, another stage or another
// layout, which DeepSpeed loads as its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "dsckpt/checkpoint.h"
#include "dsckpt/export.h"
#include "dsckpt/job.h"

namespace dsckpt {

// More ranks than this are taken for a mistake.
inline constexpr uint32_t kMaxRanks = 1 << 16;

struct ReshardOptions {
  uint32_t dp = 1;  // data-parallel ranks of the new run, of each mp rank; up to kMaxRanks
  // Expert-parallel ranks of the new run, up to kMaxRanks. Default: as it was.
  std::optional<uint32_t> ep = {};
  // ZeRO stage of the new run, 0 to 3. Default: what `ds_config` or SourceOptions::like say, else
  // as it was.
  std::optional<int> stage = {};
  // zero_optimization.sub_group_size of the new run, elements, not 0. Default likewise.
  std::optional<uint64_t> sub_group_size = {};
  // The release of DeepSpeed that is to load it, "0.16.4". Empty: the one that saved the
  // checkpoint.
  std::string ds_version = {};
  // The new run's DeepSpeed configuration, a JSON file. Empty: none.
  std::filesystem::path ds_config = {};
  // Find the batch settings that keep the global batch on the new ranks, and write
  // ds_config_dpN.json with the one suggested.
  bool plan_batch = false;
};

// OUTPUT/TAG/ with the shards, OUTPUT/latest, and copies of the files that lie beside the shards.
// `source` has to be open with SourceOptions::optimizer_states, or of weights with
// SourceOptions::like, of whose training nothing is kept. With SourceOptions::weights_from the
// checkpoint has these weights and goes on; weights beside its shards are left out then.
// SourceOptions::like of a checkpoint says what the new run is like: parameter groups, their order
// and the layout. What torch.distributed.checkpoint wrote needs it or `ds_config`, whose run has
// the groups in their order there. Throws UsageError for options out of their ranges, or that
// contradict each other or the checkpoint, UnsupportedError for what cannot be cut anew or
// DeepSpeed could not load, InconsistentError for parameters that `like` has and the source has
// not, or the other way round.
DSCKPT_EXPORT Job plan_reshard(const Source& source, const ReshardOptions& options);

}  // namespace dsckpt
