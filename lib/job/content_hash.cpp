#include "job/content_hash.h"

#include <algorithm>
#include <string_view>

#include "base/bytes.h"
#include "dsckpt/error.h"
#include "exec/extent_sums.h"
#include "exec/frame_cuts.h"

namespace dsckpt {

ContentHashes content_hashes(const Job::Impl& job, const std::vector<bool>& done,
                             const Reading& reading) {
  std::vector<Extent> contents;
  std::vector<size_t> outputs;  // of each content
  for (size_t i = 0; i < job.copied.size(); ++i) {
    if (!is_packable(job.plan.outputs()[i].path) || (!done.empty() && done[i])) continue;
    contents.push_back({job.copied[i], 0, (*job.inputs)[job.copied[i]].size()});
    outputs.push_back(i);
  }
  reading.progress.bytes_done = 0;
  reading.progress.bytes_total = 0;
  ContentHashes hashes(job.copied.size());
  sum_extents(*job.inputs, contents, SumKind::sha256, reading,
              [&](size_t content, std::string_view sum, const Error* failure) {
                if (failure != nullptr) failure->raise();
                Sha256Digest& hash = hashes[outputs[content]].emplace();
                std::ranges::copy(as_byte_span(sum), hash.begin());
              });
  return hashes;
}

void check_has_content_hashes(const Job::Impl& job) {
  const bool has_any = std::any_of(job.copied.begin(), job.copied.end(), [&](FileId input) {
    return (*job.inputs)[input].sha256().has_value();
  });
  if (!has_any) {
    throw UsageError("--sha256: no file was packed with --sha256, so there is nothing to compare");
  }
}

void check_content_hashes(const Job::Impl& job, const ContentHashes& digests) {
  for (size_t i = 0; i < digests.size(); ++i) {
    const InputFile& file = (*job.inputs)[job.copied[i]];
    const auto expected = file.sha256();
    if (expected && digests[i] && *expected != *digests[i]) {
      throw CorruptError({.file = file.display()}, "has the SHA-256 " + hex_digits(*digests[i]) +
                                                       ", was packed with " +
                                                       hex_digits(*expected));
    }
  }
}

uint64_t bytes_packable(const CopyPlan& plan) {
  uint64_t sum = 0;
  for (const PlannedFile& file : plan.outputs()) {
    if (is_packable(file.path)) sum += file.size;
  }
  return sum;
}

}  // namespace dsckpt
