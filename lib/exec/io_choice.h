// Chooses how a run reads and writes; exec/README.md has the measurements behind it.
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

// The file systems that a run reads from and writes to.
struct FileSystems {
  FileSystemKind input = FileSystemKind::local;
  FileSystemKind output = FileSystemKind::local;
};
// Examines some of the inputs. The result is a network's file system if one of them is on it.
FileSystems file_systems(const InputFiles& inputs, const std::filesystem::path& output);

struct IoChoice {
  bool direct = false;
  uint64_t unit_bytes = 0;  // ExecOptions::unit_bytes, which says how long reads are (ItemReader)
  unsigned threads = 0;     // ExecOptions::threads, never 0
  uint64_t write_bytes = OutputOptions().write_bytes;  // StageOptions::write_bytes
  uint64_t cut_bytes = ShareOptions().cut_bytes;       // ShareOptions::cut_bytes
};

// Chooses for a run of `plan`. If `durable`, the run waits for the disk. If `packs`, outputs become
// packed files (PackedOutput), which are never written directly. If `threads` is 0, there is a
// thread for each core. More keep a disk busy if writes are direct or some of the input is not in
// the page cache. Compressed objects get a thread for each request; other objects are read ahead
// (announced_reads.h). On a network's file system, of the input or the output, units and requests
// are longer, and outputs are cut between ranks at its stripes. Throws IoError.
IoChoice choose_io(IoMode mode, const CopyPlan& plan, const InputFiles& inputs,
                   const FileSystems& systems, bool durable, bool packs, unsigned threads);

}  // namespace dsckpt
