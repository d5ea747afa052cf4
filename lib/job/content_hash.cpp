#include "job/content_hash.h"

#include <algorithm>
#include <atomic>
#include <span>

#include "dsckpt/error.h"
#include "exec/frame_cuts.h"
#include "exec/workers.h"

namespace dsckpt {
namespace {

constexpr uint64_t kHashedAtOnce = 1 << 20;

}  // namespace

ContentHashes content_hashes(const Job::Impl& job, Progress& progress, unsigned threads) {
  ContentHashes digests(job.copied.size());
  progress.bytes_done = 0;
  progress.bytes_total = bytes_packable(job.plan);
  std::atomic<size_t> next{0};
  run_workers(threads, [&] {
    std::vector<std::byte> buffer(kHashedAtOnce);
    for (size_t i; (i = next++) < digests.size();) {
      if (!is_packable(job.plan.outputs()[i].path)) continue;
      const InputFile& file = (*job.inputs)[job.copied[i]];
      Sha256 hash;
      for (uint64_t at = 0; at < file.size();) {
        if (progress.cancelled) throw InterruptedError();
        const auto piece =
            std::span(buffer).first(std::min<uint64_t>(buffer.size(), file.size() - at));
        file.read_at(at, piece);
        hash.update(piece);
        at += piece.size();
        progress.bytes_done += piece.size();
      }
      digests[i] = hash.digest();
    }
  });
  return digests;
}

void check_content_hashes(const Job::Impl& job, const ContentHashes& digests) {
  bool any = false;
  for (size_t i = 0; i < digests.size(); ++i) {
    const InputFile& file = (*job.inputs)[job.copied[i]];
    const auto expected = file.sha256();
    if (!expected || !digests[i]) continue;
    any = true;
    if (*expected != *digests[i]) {
      throw CorruptError({.file = file.display()}, "has the SHA-256 " + hex_digits(*digests[i]) +
                                                       ", was packed with " +
                                                       hex_digits(*expected));
    }
  }
  if (!any) {
    throw UsageError("--sha256: no file was packed with --sha256, so there is nothing to compare");
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
