// Which bytes of a zip say what.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "base/bytes.h"
#include "format/zip.h"
#include "format/zip_records.h"

namespace dsckpt::test {

// Those that no reader uses and nothing says twice: the versions, the attributes of records, the
// comment at the end (APPNOTE 4.4.2, 4.4.3, 4.4.14, 4.4.15, 4.4.26); and of those that are there or
// 0, as writers like it, the CRC32 and sizes in local headers and the number of disks. `bytes` are
// those of `zip`, whose end record has its directory's offset.
inline std::set<uint64_t> unused_bytes(const std::string& bytes, const ZipReader& zip) {
  std::set<uint64_t> unused;
  const auto add = [&](uint64_t begin, uint64_t size) {
    for (uint64_t i = 0; i < size; ++i) unused.insert(begin + i);
  };
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
  const uint64_t end = bytes.rfind("PK\5\6");
  uint64_t at = load_le<uint32_t>(data + end + 16);
  for (const ZipEntry& entry : zip.entries()) {
    add(entry.header_offset + 4, 2);
    if ((entry.flags & zip::kDescriptorFlag) != 0) add(entry.header_offset + 14, 12);
    add(at + 4, 4);
    add(at + 36, 6);
    const auto length = [&](uint64_t where) { return load_le<uint16_t>(data + at + where); };
    at += zip::kCentralSize + length(28) + length(30) + length(32);
  }
  if (bytes.compare(at, 4, "PK\6\6") == 0) {
    add(at + 12, 4);
    add(end - 4, 4);
  }
  add(end + zip::kEndSize, bytes.size() - end - zip::kEndSize);
  return unused;
}

}  // namespace dsckpt::test
