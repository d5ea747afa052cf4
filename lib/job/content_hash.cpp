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

ContentHashes content_hashes(const Job::Impl& job, const std::vector<bool>& done,
                             Progress& progress, unsigned threads) {
  ContentHashes digests(job.copied.size());
  const auto is_wanted = [&](size_t output) {
    return is_packable(job.plan.outputs()[output].path) && (done.empty() || !done[output]);
  };
  progress.bytes_done = 0;
  progress.bytes_total = 0;
  for (size_t i = 0; i < digests.size(); ++i) {
    if (is_wanted(i)) progress.bytes_total += (*job.inputs)[job.copied[i]].size();
  }
  std::atomic<size_t> next{0};
  run_workers(threads, [&] {
    std::vector<std::byte> buffer(kHashedAtOnce);
    for (size_t i; (i = next++) < digests.size();) {
      if (!is_wanted(i)) continue;
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
