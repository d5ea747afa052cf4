// How the bytes of a run reach the disk: exec/README.md has the measurements behind it.
#pragma once

#include <cstdint>
#include <filesystem>

#include "dsckpt/run.h"
#include "exec/shares.h"
#include "io/file_system.h"
#include "io/input_file.h"
#include "io/output_file.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// Where a run reads and writes.
struct FileSystems {
  FileSystemKind input = FileSystemKind::local;
  FileSystemKind output = FileSystemKind::local;
};
// The inputs are judged by some of them: a network's, if one of these is on it.
FileSystems file_systems(const InputFiles& inputs, const std::filesystem::path& output);

struct IoChoice {
  bool direct = false;
  uint64_t unit_bytes = 0;  // ExecOptions::unit_bytes, which says how long reads are (ItemReader)
  unsigned threads = 0;     // ExecOptions::threads, never 0
  uint64_t write_bytes = OutputOptions().write_bytes;  // StageOptions::write_bytes
  uint64_t cut_bytes = ShareOptions().cut_bytes;       // ShareOptions::cut_bytes
};

// For a run of `plan`, which then waits for the disk if `durable`, and whose outputs become packed
// files (PackedOutput) if `packs`: these are never written directly. `threads` 0: as many as there
// are cores, and as many more as keep a disk busy if writes are direct or some of the input is not
// in the page cache; of objects that are compressed, as many as their requests, for others are read
// ahead (announced_reads.h). On a network's file system, of the input or the output, units and
// requests are longer, and outputs are cut between ranks where its stripes are. Throws IoError.
IoChoice choose_io(IoMode mode, const CopyPlan& plan, const InputFiles& inputs,
                   const FileSystems& systems, bool durable, bool packs, unsigned threads);

}  // namespace dsckpt
