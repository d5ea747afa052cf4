// Sink: receives the bytes of a plan's outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "plan/tensor_source.h"

namespace dsckpt {

class Sink {
 public:
  virtual ~Sink() = default;
  // Any thread. Every byte of an output is given once, with its final value. The places of a digest
  // (patches.h) are left out until it is known. They come with the rest of the output, or at its
  // end.
  virtual void write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) = 0;
  // True if it needs a digest as soon as that is known, and not after all other bytes of the
  // output.
  virtual bool wants_digests_early() const { return false; }
  // Once for each output, by any thread, after its last write_at has returned.
  virtual void finish(OutputId out) = 0;
};

}  // namespace dsckpt
