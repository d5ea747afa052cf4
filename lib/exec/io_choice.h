// How the bytes of a run reach the disk: exec/README.md has the measurements behind it.
#pragma once

#include <cstdint>

#include "dsckpt/run.h"
#include "io/input_file.h"
#include "plan/copy_plan.h"

namespace dsckpt {

struct IoChoice {
  bool direct = false;
  uint64_t unit_bytes = 0;  // ExecOptions::unit_bytes
  unsigned threads = 0;     // ExecOptions::threads, never 0
};

// For a run of `plan`, which then waits for the disk if `durable`, and whose outputs become packed
// files (PackedOutput) if `packs`: these are never written directly. `threads` 0: as many as there
// are cores, and as many more as keep a disk busy if writes are direct or some of the input is not
// in the page cache. Throws IoError.
IoChoice choose_io(IoMode mode, const CopyPlan& plan, const InputFiles& inputs, bool durable,
                   bool packs, unsigned threads);

}  // namespace dsckpt
