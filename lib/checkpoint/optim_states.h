// What the optimizer-states files of all ranks have in common.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "checkpoint/layout.h"
#include "checkpoint/shard.h"

namespace dsckpt {

// optimizer_state_dict of an optimizer-states file.
Fields optimizer_state(const Shard& optim);

// A rank's masters: a tensor of fp32, or of 16 bit where the run kept its masters so
// (bf16_master_weights_and_grads). Throws UnsupportedError for other types.
TensorSource flat_masters(const Shard& optim, const pickle::Value& tensor);

// ZeRO stage of an optimizer-states file: its zero_stage; BF16_Optimizer writes none and is stage 1
// (ds_to_universal.py does the same). Throws CorruptError for other numbers.
int zero_stage_of(const Shard& optim);

// Opens the optimizer-states files of the folder into draft.optim_shards, in rank order, and checks
// that they are those of ranks 0 to partition_count - 1. `partition_count` may be a list, one count
// for each group. Throws InconsistentError that lists every missing file, or names those that are
// too many.
void open_optim_shards(CheckpointDraft& draft);

// The same for one model-states file for each of `dp` ranks (stage 3).
void open_zero_model_shards(CheckpointDraft& draft, uint32_t dp);
// The one model-states file of stages 0 to 2.
void open_model_shard(CheckpointDraft& draft);

// The data-parallel degree that all groups of all ranks agree on. Throws.
uint32_t data_parallel_degree(const std::vector<Shard>& optim);

// Compares what must be equal on all ranks of one step: step counts, loss scale, hyper-parameters.
// Where there are step counts, hyper-parameters that differ are only noted: ranks may have
// scheduled apart. `state_key` names the optimizer's state_dict within optimizer_state_dict. Throws
// InconsistentError that names both files.
void check_same_step(CheckpointDraft& draft, std::string_view state_key);

// Adds a note if the model-states file counts other steps than the optimizer: its file may be of
// another save. No error, for a run may start with a fresh optimizer.
void note_other_step(CheckpointDraft& draft, std::string_view state_key);

}  // namespace dsckpt
