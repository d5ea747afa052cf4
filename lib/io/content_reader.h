// ContentReader: the bytes of a file that another one holds in some other form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "codec/packed_index.h"

namespace dsckpt {

// All methods from any thread.
class ContentReader {
 public:
  virtual ~ContentReader() = default;

  // Bytes of the content.
  virtual uint64_t size() const = 0;
  // Fills `out` with the content from `offset` on; all of it lies inside. Throws CorruptError that
  // names the stored file and the place there, and IoError.
  virtual void read_at(uint64_t offset, std::span<std::byte> out) = 0;
  // Where, in the stored file, the content's byte `offset` comes from; of compressed bytes where
  // the first of them is.
  virtual uint64_t stored_offset(uint64_t offset) const = 0;
  // How many stored bytes content [offset, offset + size) takes, as a share of those that it is
  // compressed with.
  virtual double stored_bytes(uint64_t offset, uint64_t size) const = 0;
  // Of the content, if the stored file says it.
  virtual std::optional<Sha256Digest> sha256() const { return std::nullopt; }
};

}  // namespace dsckpt
