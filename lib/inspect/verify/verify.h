// Verify: reports every defect of a checkpoint in one report.
//
// The readers stop at the first error; this continues. First it opens every file on its own and
// checks every record's CRC32. Then it compares files with each other, then the values.
// Consequences of a reported defect are not reported: the list of checks says which were skipped,
// and why.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "dsckpt/run.h"
#include "inspect/verify/findings.h"
#include "io/input_file.h"

namespace dsckpt {

// Verifies `path`, which is a folder with `latest` or the tag, or a tag's own folder. It may also
// be a universal checkpoint, a folder of weights, or one file of torch.save or safetensors. Reads
// every byte once or twice; memory does not grow with the size of the tensors. Throws UsageError if
// the path does not exist, InconsistentError if it holds nothing to verify. Throws IoError,
// CorruptError for an invalid manifest, InterruptedError.
VerifyReport verify(InputFiles& inputs, const std::filesystem::path& path,
                    const VerifyOptions& options, Progress& progress);

// {"form", "folder", "ok", "findings": [{"check", "message", "file"?, "rank"?: {"dp", "mp"},
// "member"?, "tensor"?, "state"?, "tensors"?, "offset"?, "size"?}], "files", "records", "bytes",
// "checks": [{"check", "done", "why"?}]}
nlohmann::json verify_json(const VerifyReport& report);

}  // namespace dsckpt
