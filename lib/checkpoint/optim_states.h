// The common contents of the optimizer-states files of all ranks.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "checkpoint/layout.h"
#include "checkpoint/shard.h"

namespace dsckpt {

// optimizer_state_dict of an optimizer-states file.
Fields optimizer_state(const Shard& optim);

// The same, as Checkpoint::wrapper_state().
ShardValue wrapper_state(const Shard& optim);

// A rank's masters: a tensor of fp32, or of 16 bit where the run kept its masters so
// (bf16_master_weights_and_grads). Throws UnsupportedError for other types.
TensorSource flat_masters(const Shard& optim, const pickle::Value& tensor);
void check_master_type(DType dtype);

// ZeRO stage of an optimizer-states file: its zero_stage; BF16_Optimizer writes none and is stage 1
// (ds_to_universal.py does the same). Throws CorruptError for other numbers.
int zero_stage_of(const Shard& optim);
// The same, given optimizer_state_dict.
int zero_stage_of(const Fields& fields);

// The ranks that each flat tensor was cut over: partition_count, which may be a list, one count for
// each group.
std::vector<int64_t> partition_counts(const Fields& optimizer);

// Opens the optimizer-states files of the folder into draft.optim_shards, by mp rank and then by
// data-parallel rank. Checks that all ranks have one. The largest partition_count is the number of
// data-parallel ranks, mp_world_size that of model-parallel ones. Sets facts.mesh.dp. Throws
// InconsistentError that lists every missing file, or names surplus ones. With
// draft.options.allow_missing, files that are missing or cannot be read have stand-ins (salvage.h).
void open_optim_shards(CheckpointDraft& draft);

// The same for the model-states files: one for each mp rank, or, of kind zero_model_states (stage
// 3), one for every rank. Sets facts.mesh.pp and .tp, as reshape_3d_utils.py
// get_model_3d_descriptor_from_metadata does, and run_config, from the first files. So the
// optimizer-states files, if there are any, must be opened before.
void open_model_shards(CheckpointDraft& draft, ShardName::Kind kind);

// Compares the steps in all files of the checkpoint, for every layout of native shards. First
// `global_steps` and other counters of the model-states files. Then the values that are equal in
// the optimizer-states files of one step: step counts, loss scale, hyper-parameters.
// Hyper-parameters are compared among the data-parallel ranks of one mp rank. If there are step
// counts, different hyper-parameters are only noted: ranks may have scheduled apart. The
// optimizer's state_dict is at `state_key` within optimizer_state_dict. Throws InconsistentError
// that says which files are from which step. With draft.options.allow_missing, files become lost
// instead if their step is not in those of the other kind.
//
// Then compares the optimizer's step with that of the model-states file (global_steps less
// skipped_steps). At stage 0 the files of experts' optimizers are compared so. If they differ, a
// run in fp32 is refused, since nothing else reveals two mixed saves. It is accepted if the
// optimizer was started afresh, by its learning rates. With draft.options.allow_missing, the
// model-states files become lost, and the masters are left. In other runs, whose 16-bit weights
// `verify` compares with their masters, it is a note and among draft.doubts.
void check_steps(CheckpointDraft& draft, std::string_view state_key);

// draft.optim_shards of one mp rank, by data-parallel rank.
std::vector<const Shard*> optim_shards_of(const CheckpointDraft& draft, uint32_t mp_rank);

// Looks up the places of flat tensors, listed at `masters_key`, in the files of many ranks at once.
// If wanted, also those of their states, at `state_key`. For remote files each lookup is a request.
// Does nothing for other files. Errors are reported later, when each file is read in its turn.
void look_up_tensors(const CheckpointDraft& draft, std::string_view masters_key,
                     std::string_view state_key, bool states);

}  // namespace dsckpt
