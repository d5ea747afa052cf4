// The use cases of ckpt-pack: the files of a folder in fewer bytes, and back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "io/input_file.h"
#include "job/run_plan.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// Files to copy byte for byte; pack and unpack differ in what they are stored as.
struct PackPlan {
  CopyPlan plan;
  std::vector<FileId> inputs;  // by output
  std::vector<InputRecord> records;
  std::vector<std::string> notes;

  uint64_t bytes_packable() const;
};

// All files of the folder `input`, at any depth, or the file `input` alone, under the names of
// their contents. Links to files count as files; links to folders, broken links, what is neither
// file nor folder, and unfinished outputs (.dsckpt-staging-*) are left out, with a note. Torch
// archives and safetensors are planned tensor by tensor, so that PackedOutput sees types; what
// cannot be read as either is planned as bytes, with a note. Valid against `inputs`. Throws
// UsageError if there is nothing, IoError, InconsistentError for a content that is there in two
// forms.
PackPlan plan_pack(InputFiles& inputs, const std::filesystem::path& input);

// The same files as bytes.
PackPlan plan_unpack(InputFiles& inputs, const std::filesystem::path& input);

// Throws UsageError if `output` lies in `input` or holds it.
void check_pack_place(const std::filesystem::path& input, const std::filesystem::path& output);

// SHA-256 of the contents of the packable ones, by output. Reads all of them. Throws
// InterruptedError and what reading throws.
std::vector<std::optional<Sha256Digest>> sha256_of(const PackPlan& plan, const InputFiles& inputs,
                                                   Progress& progress, unsigned threads);
// Throws CorruptError that names the first file that is not what its packed file says, and
// UsageError if none of them says anything.
void check_sha256(const PackPlan& plan, const InputFiles& inputs,
                  const std::vector<std::optional<Sha256Digest>>& digests);

// Runs it into `output`, which becomes those files and nothing else.
ExecStats run_pack(const PackPlan& plan, const InputFiles& inputs,
                   const std::filesystem::path& output, Progress& progress,
                   const RunOptions& options);

// What packing would come to, from a sample.
struct PackEstimate {
  struct Kind {
    std::string kind;      // an element type, "float32", or "other bytes"
    uint64_t bytes = 0;    // of all files
    uint64_t sampled = 0;  // bytes
    uint64_t sampled_stored = 0;

    double ratio() const;  // stored to content
  };
  std::vector<Kind> kinds;  // the largest first
  uint64_t bytes = 0;
  uint64_t files = 0;
  double seconds = 0;  // of the whole work on `threads`, with all in the page cache
  unsigned threads = 0;

  double stored() const;
};

// Compresses frames evenly spread over all packable files, about `sample_bytes` of them, on all
// threads. Throws as reading does, and InterruptedError.
PackEstimate estimate_pack(const PackPlan& plan, const InputFiles& inputs, int level,
                           uint64_t sample_bytes, Progress& progress, unsigned threads);

}  // namespace dsckpt
