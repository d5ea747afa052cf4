// ContentReader: the content of a file that is stored in another form.
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
  // Fills `out` with the content from `offset` on; all of it lies inside. Throws IoError, and
  // CorruptError that names the stored file and the place in it.
  virtual void read_at(uint64_t offset, std::span<std::byte> out) = 0;
  // The offset in the stored file of the content's byte `offset`. For compressed bytes, the offset
  // of the first byte of their block.
  virtual uint64_t stored_offset(uint64_t offset) const = 0;
  // The number of stored bytes for content [offset, offset + size), as a share of the bytes that it
  // is compressed with.
  virtual double stored_bytes(uint64_t offset, uint64_t size) const = 0;
  // The hash of the content, if the stored file has it.
  virtual std::optional<Sha256Digest> sha256() const { return std::nullopt; }
};

}  // namespace dsckpt
