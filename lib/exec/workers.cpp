#include "exec/workers.h"

#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <optional>

#include "base/turns.h"
#include "io/far_files.h"

namespace dsckpt {

unsigned cores() {
  return static_cast<unsigned>(tbb::info::default_concurrency());
}

unsigned default_threads() {
  return std::max({cores(), 4u, far_requests()});
}

void with_threads(unsigned threads, const std::function<void()>& work) {
  if (threads == 0) threads = default_threads();
  // Without the control an arena of more threads than cores would be cut down silently; with one
  // for fewer, runs at the same time would be.
  std::optional<tbb::global_control> control;
  if (threads > cores()) control.emplace(tbb::global_control::max_allowed_parallelism, threads);
  tbb::task_arena(static_cast<int>(threads)).execute(work);
}

void run_workers(unsigned threads, const std::function<void()>& work) {
  if (threads == 0) threads = default_threads();
  with_threads(threads, [&] {
    tbb::parallel_for(
        0u, threads, [&](unsigned) { work(); }, tbb::simple_partitioner());
  });
}

void run_for_each(unsigned threads, size_t count, const std::function<void(size_t)>& work) {
  if (count == 0) return;
  if (threads == 0) threads = default_threads();
  Turns turns(count);
  run_workers(static_cast<unsigned>(std::min<size_t>(threads, count)), [&] { turns.take(work); });
}

}  // namespace dsckpt
