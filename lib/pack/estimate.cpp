#include "pack/estimate.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>

#include "base/turns.h"
#include "codec/frame.h"
#include "dsckpt/error.h"
#include "exec/frame_cuts.h"
#include "exec/workers.h"
#include "job/content_hash.h"
#include "job/job_impl.h"

namespace dsckpt {
namespace {

std::string kind_of(PlaneLayout layout) {
  if (layout == plane_layout_of(DType::float32)) return "float32";
  if (layout == plane_layout_of(DType::bfloat16)) return "bfloat16";
  if (layout == plane_layout_of(DType::float16)) return "float16 and other 16-bit types";
  if (layout == plane_layout_of(DType::int32)) return "other 32-bit types";
  if (layout == plane_layout_of(DType::int64)) return "64-bit types";
  return "other bytes";
}

}  // namespace

double PackEstimate::Kind::ratio() const {
  return sampled == 0 ? 1 : static_cast<double>(sampled_stored) / static_cast<double>(sampled);
}

double PackEstimate::stored() const {
  double sum = 0;
  for (const Kind& kind : kinds) sum += kind.ratio() * static_cast<double>(kind.bytes);
  return sum;
}

PackEstimate estimate_pack(const Job& job, int level, uint64_t sample_bytes, Progress& progress,
                           unsigned threads) {
  struct Sample {
    FileId file;
    FrameCut cut;
    uint64_t stored = 0;
  };
  std::map<std::string, PackEstimate::Kind> kinds;
  std::vector<Sample> samples;
  PackEstimate result;
  const uint64_t step =
      std::max<uint64_t>(bytes_packable(job->plan) / std::max<uint64_t>(sample_bytes, 1), 1);
  uint64_t frames = 0;
  for (OutputId out = 0; out < job->plan.outputs().size(); ++out) {
    if (!is_packable(job->plan.outputs()[out].path)) continue;
    ++result.files;
    for (const FrameCut& cut : cut_into_frames(job->plan, out, {})) {
      result.bytes += cut.size;
      kinds[kind_of(cut.layout)].bytes += cut.size;
      if (frames++ % step == 0) samples.push_back({job->copied[out], cut, 0});
    }
  }
  for (const Sample& sample : samples) result.seconds += static_cast<double>(sample.cut.size);
  const double sampled = result.seconds;
  progress.bytes_done = 0;
  progress.bytes_total = static_cast<uint64_t>(sampled);

  result.threads = threads == 0 ? cores() : threads;
  const auto begin = std::chrono::steady_clock::now();
  Turns turns(samples.size());
  run_workers(result.threads, [&] {
    FrameEncoder encoder(level);
    turns.take([&](size_t i) {
      if (progress.cancelled) throw InterruptedError();
      Sample& sample = samples[i];
      const auto content = (*job->inputs)[sample.file].read(sample.cut.begin, sample.cut.size);
      sample.stored = encoder.encode(content, sample.cut.layout).size();
      progress.bytes_done += content.size();
    });
  });
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  result.seconds = sampled > 0 ? took.count() * static_cast<double>(result.bytes) / sampled : 0;

  for (const Sample& sample : samples) {
    PackEstimate::Kind& kind = kinds[kind_of(sample.cut.layout)];
    kind.sampled += sample.cut.size;
    kind.sampled_stored += sample.stored;
  }
  for (auto& [name, kind] : kinds) {
    kind.kind = name;
    result.kinds.push_back(std::move(kind));
  }
  std::sort(result.kinds.begin(), result.kinds.end(),
            [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return result;
}

}  // namespace dsckpt
