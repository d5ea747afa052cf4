// Manifests: the SHA-256 of every record and every file, which proves that a copy is exact.
//
// JSON: {"schema": 1, "type": "manifest", "hash": "sha256", "files": [{"path", "size", "sha256",
// "records": [{"name", "offset", "size", "sha256"}]}]}. Files by path, relative to the folder;
// records, of zips, and tensors, of safetensors, by offset. The same files give the same bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/extent.h"

namespace dsckpt {

inline constexpr int kManifestSchema = 1;

struct ManifestRecord {
  std::string name;
  uint64_t offset = 0;  // of the data, from the start of the file
  uint64_t size = 0;
  std::string sha256;  // 64 hexadecimal digits
};

struct ManifestFile {
  std::string path;
  uint64_t size = 0;
  std::string sha256;  // of the whole file, even outside of records
  std::vector<ManifestRecord> records;
};

using Manifest = std::vector<ManifestFile>;

// Ends in a newline.
std::string manifest_text(const Manifest& manifest);
// Writes it beside `path` and renames it. Throws IoError, and UsageError if `path` exists and not
// `force`.
void write_manifest(const Manifest& manifest, const std::filesystem::path& path, bool force);
// Throws IoError, CorruptError for a file that is not a manifest, UnsupportedError for another
// schema or hash.
Manifest read_manifest(const std::filesystem::path& path);

}  // namespace dsckpt
