// Reports: what the tools say of checkpoints and plans, as data. Text and JSON are made from the
// same.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "inspect/contents.h"
#include "inspect/extents.h"
#include "inspect/summary.h"
#include "pack/plan_strip.h"
#include "reshard/plan_reshard.h"
#include "universal/plan_universal.h"
#include "weights/plan_weights.h"

namespace dsckpt {

// Version of everything these functions put into JSON; a change that readers notice raises it.
inline constexpr int kJsonSchema = 1;

enum class Newlines : uint8_t { escape, keep };

// `text` with control characters as "\\n", "\\x1b", so that it stays on its line and does nothing
// to a terminal.
std::string printable(const std::string& text, Newlines newlines = Newlines::escape);
// "1.5 GB", in powers of 1000 as disks are sold and shard sizes are given.
std::string human_bytes(uint64_t bytes);
// "83.4 %" of 0.834.
std::string human_percent(double part);
// "0.53 s"
std::string human_seconds(double seconds);

// {"layout", "zero_stage", "dp", ...}
nlohmann::json facts_json(const Checkpoint& checkpoint);
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
// "cpu_bytes"?, "cpu_formula"?}]}
nlohmann::json memory_json(const Hardware& hardware, const std::vector<MemoryEstimate>& estimates);
// {"files": [{"path", "bytes", "state"?, "tensors": [...]}], "bytes_read", "bytes_written"}
nlohmann::json plan_json(const WeightsPlan& plan);
// {"lost_files": [{"file", "dp_rank", "mp_rank", "why"}], "incomplete": [{"name", "kind", "shape",
// "files": [...]}]}: what is lost, and what is not written for that.
nlohmann::json salvage_json(const Checkpoint& checkpoint, const WeightsPlan& plan);
// {"parameters": [{"name", "shape", "files"}], "files": [{"path", "bytes"}], "bytes_read",
// "bytes_written"}
nlohmann::json plan_json(const UniversalPlan& plan);
// {"dp", "zero_stage", "optimizer_wrapper", "tag", "groups": [{"params", "numel", "partition",
// "sub_groups"}], "batch"?, "files": [{"path", "bytes"}], "bytes_read", "bytes_written"}
nlohmann::json plan_json(const ReshardPlan& plan);
// {"keep", "tag", "files": [{"path", "before", "after"}], "bytes_before", "bytes_after",
// "bytes_read", "bytes_written"}
nlohmann::json plan_json(const StripPlan& plan);
// A plan's JSON with what running it came to: "output", "seconds", "bytes_read", "records_checked".
nlohmann::json done_json(nlohmann::json plan, const std::string& output, const ExecStats& stats);
// {"kind", "message", "file"?, "member"?, "tensor"?, "offset"?, "errno"?, "hint"?}
nlohmann::json error_json(const Error& error);

// JSON text of one line; text that is not UTF-8 is written with replacement characters.
std::string dump(const nlohmann::json& value);

}  // namespace dsckpt
