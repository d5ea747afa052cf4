// Reports: the tools' findings on checkpoints and plans, as data. Text and JSON are made from the
// same data.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "dsckpt/error.h"
#include "inspect/contents.h"
#include "inspect/extents.h"
#include "inspect/summary.h"
#include "job/job_impl.h"

namespace dsckpt {

// The version of the JSON of all these functions; a change that readers notice raises it.
inline constexpr int kJsonSchema = 1;

// {"name", "state"?, "kind"?, "dtype", "shape", "bytes", "alias_of"?, "files",
// "ranks"?: [{"dp_rank", "mp_rank"}]}
nlohmann::json tensor_json(const InputFiles& inputs, const Contents& contents,
                           const NamedTensor& tensor);
// {"file", "dp_rank"?, "mp_rank"?, "record"?, "offset", "row_bytes", "rows", "stride", "first",
// "row_elements", "step", "dtype", "copy", "mean"}, as TensorExtent has them.
nlohmann::json extent_json(const InputFiles& inputs, const TensorExtent& extent);
// {"precision", "optimizer", "counts": {KIND: {"tensors", "elements"}}, "tied", "parameters",
// "largest_layer", "files", "bytes", "kinds": [{"kind", "bytes"}], "ranks": [{"dp_rank", "mp_rank",
// "bytes", "kinds"}], "other_files": [{"file", "bytes"}]}
nlohmann::json summary_json(const Summary& summary);
// {"gpus", "gpus_per_node", "estimates": [{"stage", "offload", "gpu_bytes", "gpu_formula",
// "cpu_bytes"?, "cpu_formula"?, "of_this_run"?}]}
nlohmann::json memory_json(const Hardware& hardware, const std::vector<MemoryEstimate>& estimates,
                           const Checkpoint* checkpoint);
// A plan's JSON with the results of its run: "output", "seconds", "bytes_read", "records_checked".
nlohmann::json done_json(nlohmann::json plan, const std::string& output, const RunStats& stats);
// {"kind", "message", "file"?, "member"?, "tensor"?, "offset"?, "errno"?, "hint"?}
nlohmann::json error_json(const Error& error);

}  // namespace dsckpt
