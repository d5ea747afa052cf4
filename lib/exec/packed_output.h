// PackedOutput: writes the files of tensors of a plan as packed files (format/FORMATS.md).
//
// A frame is compressed by whoever hands in its last byte, and stored behind the one before it.
// What is written depends neither on the number of threads nor on the size of units.
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
  // Both must outlive this. `target` is a sink of the same outputs: those that is_packable() are
  // given the bytes of packed files, the others what this is given. `level`: FrameEncoder's.
  // `sha256`, by output or empty: of the content, where it is known.
  PackedOutput(const CopyPlan& plan, Sink& target, int level,
               std::vector<std::optional<Sha256Digest>> sha256 = {});
  ~PackedOutput() override;

  void write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) override;
  void finish(OutputId out) override;

  // What `target` was given so far.
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
