// SHA-256 of what a job copies: `ckpt-pack pack --sha256` keeps them, `unpack --sha256` compares.
#pragma once

#include <optional>
#include <vector>

#include "base/sha256.h"
#include "exec/reading.h"
#include "job/job_impl.h"

namespace dsckpt {

// By output; nullopt of files that are not packable.
using ContentHashes = std::vector<std::optional<Sha256Digest>>;

// Reads the packable inputs of a job that copies files, but for those of outputs that are `done`:
// by output. All ranks of a run read. Sets progress.bytes_done and bytes_total. Throws
// InterruptedError and what reading throws.
ContentHashes content_hashes(const Job::Impl& job, const std::vector<bool>& done,
                             const Reading& reading);

// Throws UsageError if no packed file has a hash to compare with.
void check_has_content_hashes(const Job::Impl& job);
// Throws CorruptError that names the first file that is not what its packed file says.
void check_content_hashes(const Job::Impl& job, const ContentHashes& hashes);

// Bytes of the outputs that are packable.
uint64_t bytes_packable(const CopyPlan& plan);

}  // namespace dsckpt
