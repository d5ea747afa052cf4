// Verify: everything that is wrong with a checkpoint, in one report.
//
// The readers stop at the first error; this goes on around it. Every file is opened on its own and
// every record's CRC32 is checked; then files are compared with one another; then the values. What
// only follows from something reported before is not reported: the list of checks says what was
// left out and why.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "dsckpt/run.h"
#include "inspect/verify/findings.h"
#include "io/input_file.h"

namespace dsckpt {

// Looks at `path`: a folder with `latest` or the tag, a tag's own folder, a universal checkpoint, a
// folder of weights or one file of torch.save or safetensors. Reads every byte once or twice,
// memory does not grow with the size of the tensors. Throws UsageError if there is no such path,
// InconsistentError if it holds nothing that could be looked at, IoError, CorruptError for a
// manifest that is none, InterruptedError.
VerifyReport verify(InputFiles& inputs, const std::filesystem::path& path,
                    const VerifyOptions& options, Progress& progress);

// {"form", "folder", "ok", "findings": [{"check", "message", "file"?, "rank"?: {"dp", "mp"},
// "member"?, "tensor"?, "state"?, "tensors"?, "offset"?, "size"?}], "files", "records", "bytes",
// "checks": [{"check", "done", "why"?}]}
nlohmann::json verify_json(const VerifyReport& report);

}  // namespace dsckpt
