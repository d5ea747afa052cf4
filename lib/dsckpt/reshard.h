// Reshard: native ZeRO files for another number of data-parallel ranks, another stage or another
// layout. DeepSpeed loads them as its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "dsckpt/checkpoint.h"
#include "dsckpt/export.h"
#include "dsckpt/job.h"

namespace dsckpt {

// The largest number of ranks; more are taken for a mistake.
inline constexpr uint32_t kMaxRanks = 1 << 16;

struct ReshardOptions {
  uint32_t dp = 1;  // data-parallel ranks of the new run, of each mp rank; up to kMaxRanks
  // Expert-parallel ranks of the new run, up to kMaxRanks. Default: unchanged.
  std::optional<uint32_t> ep = {};
  // Tensor-parallel ranks and pipeline stages of the new run, up to kMaxRanks together. Default:
  // unchanged. Other numbers need a source that is open with SourceOptions::cut_anew.
  std::optional<uint32_t> tp = {};
  std::optional<uint32_t> pp = {};
  // The layers of the new run's pipeline stages: the first of each, "0,3,5", or a method of
  // DeepSpeed, "uniform", "parameters" or "blocks" (`type:transformer`). Empty: as the present
  // stages tell.
  std::string stages = {};
  // Rows of the new run's vocabulary with its padding. Default: as the arguments that the program
  // saved tell, else unchanged.
  std::optional<int64_t> padded_vocab_size = {};
  // Key-value heads of a model that AutoTP cuts, from 1. They decide how its new ranks share slices
  // that are equal now. Default: these stay equal.
  std::optional<int64_t> kv_heads = {};
  // ZeRO stage of the new run, 0 to 3. Default: that of `ds_config` or SourceOptions::like, else
  // unchanged.
  std::optional<int> stage = {};
  // zero_optimization.sub_group_size of the new run, in elements, not 0. Same default.
  std::optional<uint64_t> sub_group_size = {};
  // The release of DeepSpeed that will load the checkpoint, "0.16.4". Empty: the release that saved
  // it.
  std::string ds_version = {};
  // The new run's DeepSpeed configuration, a JSON file. Empty: none.
  std::filesystem::path ds_config = {};
  // Find batch settings that keep the global batch size on the new ranks, and write
  // ds_config_dpN.json with the suggested one.
  bool plan_batch = false;
};

// Plans OUTPUT/TAG/ with the shards, OUTPUT/latest, and copies of the files that lie beside the
// shards. The source must be open with SourceOptions::optimizer_states, or be weights opened with
// SourceOptions::like; nothing of the training of `like` is kept then. With
// SourceOptions::weights_from the checkpoint gets these weights and its training continues; weights
// beside its shards are then left out. The checkpoint SourceOptions::like describes the new run:
// its parameter groups, their order, and the layout. Checkpoints of torch.distributed.checkpoint
// need it, or `ds_config`; with the latter, the run has the groups in the checkpoint's order.
// Throws UsageError for options out of range, and for options that contradict each other or the
// checkpoint. Throws UnsupportedError for states that cannot be cut again or that DeepSpeed could
// not load. Throws InconsistentError for parameters that only one of `like` and the source has.
DSCKPT_EXPORT Job plan_reshard(const Source& source, const ReshardOptions& options);

}  // namespace dsckpt
