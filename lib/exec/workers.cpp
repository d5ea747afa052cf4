#include "exec/workers.h"

#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>

#include "base/text.h"
#include "base/threads.h"
#include "base/turns.h"
#include "dsckpt/error.h"
#include "io/far_files.h"

namespace dsckpt {
namespace {

// Throws IoError if that many threads cannot run at once. oneTBB would end the process when one of
// its threads cannot start the next. The C library keeps the stacks of these threads for oneTBB's.
void try_threads(unsigned threads) {
  static std::mutex mutex;
  static unsigned most = 1;  // this one
  const std::lock_guard lock(mutex);
  if (threads <= most) return;
  const auto wait = [](void* gate) -> void* {
    const std::lock_guard passed(*static_cast<std::mutex*>(gate));
    return nullptr;
  };
  using tbb::global_control;
  const size_t stack = global_control::active_value(global_control::thread_stack_size);
  std::mutex gate;
  gate.lock();
  const auto [started, failed] = start_threads(threads - most, stack, wait, &gate);
  gate.unlock();
  for (const pthread_t thread : started) ::pthread_join(thread, nullptr);
  if (failed != 0) {
    throw IoError({}, "cannot start " + counted(threads, "thread"), failed)
        .with_hint("use fewer threads, or raise the limits of memory and processes");
  }
  most = threads;
}

}  // namespace

unsigned cores() {
  return static_cast<unsigned>(tbb::info::default_concurrency());
}

unsigned default_threads() {
  return std::max({cores(), 4u, far_requests()});
}

void with_threads(unsigned threads, const std::function<void()>& work) {
  if (threads == 0) threads = default_threads();
  try_threads(threads);
  // Without the control an arena of more threads than cores would be cut down silently. With a
  // control for fewer threads, other runs at the same time would be.
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
