// Sink: where the bytes of a plan go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "plan/tensor_source.h"

namespace dsckpt {

class Sink {
 public:
  virtual ~Sink() = default;
  // Any thread. Every byte of an output is given once, and is then what it is to be: the places of
  // a digest (patches.h) are left out until that is known, and come with all of the output, or when
  // it is done.
  virtual void write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) = 0;
  // Whether it wants a digest as soon as that is known, and not when all else of the output is
  // written.
  virtual bool wants_digests_early() const { return false; }
  // Once for each output, by any thread, after its last write_at has returned.
  virtual void finish(OutputId out) = 0;
};

}  // namespace dsckpt
