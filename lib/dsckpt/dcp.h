// Checkpoints of torch.distributed.checkpoint (DCP), which FSDP2 loads with dcp.load.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "dsckpt/checkpoint.h"
#include "dsckpt/dtype.h"
#include "dsckpt/export.h"
#include "dsckpt/job.h"

namespace dsckpt {

// The framework whose keys the folder has.
enum class DcpPreset : uint8_t {
  torch,       // model.NAME and optim....: dcp.save({"model": ..., "optim": ...})
  accelerate,  // two folders, pytorch_model_fsdp_0/ with model.NAME, optimizer_0/ with
               // optimizer....
  torchtitan,  // NAME, and optimizer....
  trainer,     // as Accelerate, with the files that the Trainer of transformers keeps beside
  lightning,   // model.NAME and optimizer...., and meta.pt, as Fabric has them
};

struct DcpOptions {
  // The number of ranks that will load it. There are as many files, and tensors are cut for them.
  uint32_t dp = 1;
  DcpPreset preset = DcpPreset::torch;
  // The type that the model's floating tensors are converted to; nullopt keeps the stored types.
  // Optimizer states keep their types.
  std::optional<DType> dtype = DType::float32;
  // Write only the weights: no optimizer, and nothing else that a resumed run needs.
  bool weights_only = false;
};

// The largest number that `dp` may be.
inline constexpr uint32_t kMostDcpRanks = 1 << 16;

// Plans a folder that torch.distributed.checkpoint.load reads. `dp` ranks read nothing twice; any
// other number of ranks can load it too. Optimizer states are stored in both forms of
// torch.distributed.checkpoint.state_dict, nested and flattened. Tied names share their bytes, and
// so do the two forms. A chunk is the part of a tensor that one rank of FSDP2 has. Beyond
// kMostChunks (dcp/chunk_cut.h) a chunk covers several neighbouring ranks. The source must be open
// with SourceOptions::optimizer_states, unless `weights_only`. Throws UsageError for numbers that
// make no sense, bad rules, and names that become equal. Throws UnsupportedError for unknown
// groups, states that differ between ranks, and elements that cannot become `dtype`. Throws
// InconsistentError for keys that occur twice.
DSCKPT_EXPORT Job plan_dcp(const Source& source, const DcpOptions& options = {});

}  // namespace dsckpt
