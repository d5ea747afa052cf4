// The constants of a zip's records, shared by reader and writer, with APPNOTE section numbers. Byte
// layout in FORMATS.md.
#pragma once

#include <cstdint>

namespace dsckpt::zip {

inline constexpr uint32_t kLocalSignature = 0x04034b50;       // 4.3.7
inline constexpr uint32_t kDescriptorSignature = 0x08074b50;  // 4.3.9
inline constexpr uint32_t kCentralSignature = 0x02014b50;     // 4.3.12
inline constexpr uint32_t kEnd64Signature = 0x06064b50;       // 4.3.14
inline constexpr uint32_t kLocatorSignature = 0x07064b50;     // 4.3.15
inline constexpr uint32_t kEndSignature = 0x06054b50;         // 4.3.16

// Bytes of each record without its variable fields.
inline constexpr uint64_t kLocalSize = 30;
inline constexpr uint64_t kDescriptorSize = 16;
inline constexpr uint64_t kDescriptor64Size = 24;
inline constexpr uint64_t kCentralSize = 46;
inline constexpr uint64_t kEnd64Size = 56;
inline constexpr uint64_t kLocatorSize = 20;
inline constexpr uint64_t kEndSize = 22;

// 4.4.4, general purpose flags
inline constexpr uint16_t kDescriptorFlag = 1 << 3;
inline constexpr uint16_t kUtf8Flag = 1 << 11;
inline constexpr uint16_t kEncryptionFlags = 1 << 0 | 1 << 6 | 1 << 13;

// 4.4.15, external attributes of MS-DOS. miniz reads them whatever system they are from.
inline constexpr uint32_t kFolderAttribute = 1 << 4;

inline constexpr uint16_t kDeflated = 8;  // 4.4.5

// The longest name that torch gets whole from miniz (MZ_ZIP_MAX_ARCHIVE_FILENAME_SIZE).
inline constexpr size_t kMaxName = 511;

inline constexpr uint16_t kZip64Extra = 0x0001;  // 4.5.3
// 4.6.9, Info-ZIP's: another name, which newer Pythons use.
inline constexpr uint16_t kUnicodePathExtra = 0x7075;
// "FB": torch's padding, a run of 'Z' that brings the data to a multiple of kAlignment.
inline constexpr uint16_t kPaddingExtra = 0x4246;
inline constexpr uint64_t kAlignment = 64;

// Values from here on go into a zip64 field.
inline constexpr uint64_t kMax32 = 0xFFFFFFFF;
inline constexpr uint64_t kMax16 = 0xFFFF;

}  // namespace dsckpt::zip
