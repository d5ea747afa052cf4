// PackedOutput: writes the files of tensors of a plan as packed files (format/FORMATS.md).
//
// The thread that hands in the last byte of a frame compresses it, and stores it behind the frame
// before. The output depends neither on the number of threads nor on the size of units.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "codec/packed_index.h"
#include "exec/patches.h"
#include "exec/sink.h"
#include "plan/copy_plan.h"

namespace dsckpt {

class PackedOutput : public Sink {
 public:
  // Both must outlive this. `target` is a sink of the same outputs. It gets packed files for those
  // that is_packable(), and the original bytes for the others. `level` is FrameEncoder's. `sha256`
  // has the hashes of contents that are known, by output, or is empty.
  PackedOutput(const CopyPlan& plan, Sink& target, int level,
               std::vector<std::optional<Sha256Digest>> sha256 = {});
  ~PackedOutput() override;

  void write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) override;
  void finish(OutputId out) override;

  // The number of bytes that `target` got so far.
  uint64_t bytes_stored() const { return bytes_stored_; }

 private:
  class File;
  std::span<const uint64_t> patches(OutputId out) const;
  File& file(OutputId out);

  const CopyPlan& plan_;
  Sink& target_;
  const int level_;
  const std::vector<std::optional<Sha256Digest>> sha256_;
  const Patches patches_;
  std::mutex mutex_;                                           // of files_
  std::unordered_map<OutputId, std::unique_ptr<File>> files_;  // that are being written
  std::atomic<uint64_t> bytes_stored_{0};
};

}  // namespace dsckpt
