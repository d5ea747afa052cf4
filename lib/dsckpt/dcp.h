// Checkpoints of torch.distributed.checkpoint (DCP): what FSDP2 loads with dcp.load.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "dsckpt/checkpoint.h"
#include "dsckpt/dtype.h"
#include "dsckpt/export.h"
#include "dsckpt/job.h"

namespace dsckpt {

// Whose keys the folder has.
enum class DcpPreset : uint8_t {
  torch,       // model.NAME and optim....: dcp.save({"model": ..., "optim": ...})
  accelerate,  // two folders, pytorch_model_fsdp_0/ with model.NAME, optimizer_0/ with
               // optimizer....
  torchtitan,  // NAME, and optimizer....
  trainer,     // as Accelerate, with the files that the Trainer of transformers keeps beside
  lightning,   // model.NAME and optimizer...., and meta.pt, as Fabric has them
};

struct DcpOptions {
  // How many ranks will load it: as many files there are, and so tensors are cut.
  uint32_t dp = 1;
  DcpPreset preset = DcpPreset::torch;
  // What the model's floating tensors become; nullopt leaves each as it is stored. Optimizer states
  // keep their types.
  std::optional<DType> dtype = DType::float32;
  // Without the optimizer and what else a run goes on with.
  bool weights_only = false;
};

// The most `dp` there may be.
inline constexpr uint32_t kMostDcpRanks = 1 << 16;

// The folder that torch.distributed.checkpoint.load reads, at `dp` ranks without reading anything
// twice, at any other number too. Optimizer states are there in both forms that
// torch.distributed.checkpoint.state_dict has, nested and flattened; tied names and the two forms
// share their bytes. A chunk is what one rank of FSDP2 has of a tensor, or where there would be
// more than kMostChunks (dcp/chunk_cut.h), what several neighbours have. `source` has to be open
// with SourceOptions::optimizer_states, but for `weights_only`. Throws UsageError for numbers that
// make no sense, bad rules and names that become one; UnsupportedError for groups that nobody
// knows, for states that differ between ranks, and for elements that cannot become `dtype`;
// InconsistentError for keys that come twice.
DSCKPT_EXPORT Job plan_dcp(const Source& source, const DcpOptions& options = {});

}  // namespace dsckpt
