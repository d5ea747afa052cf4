// The places of values in a checkpoint of torch.distributed.checkpoint (DCP), by its `.metadata`.
// Source: torch/distributed/checkpoint/filesystem.py, FileSystemReader. For scan_path.cpp only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/input_file.h"

namespace dsckpt {

// A range of a file that is passed to torch.load. Several values may share one.
struct DcpItem {
  std::string name;  // of the first value that lies there
  uint64_t offset = 0;
  uint64_t size = 0;
};

// A file beside the `.metadata`. Its name is relative to that folder, and may lead out of it.
struct DcpFile {
  std::string name;
  std::vector<DcpItem> items;  // each range once, by their offsets
};

// True if torch takes a file of this name for the pickle with the places of all others.
bool is_dcp_metadata(std::string_view filename);

// The items of all files, by their names. The pickle is read as data. Throws IoError. Throws
// CorruptError for a file that is not a pickle or that torch would not build so: then it is unknown
// what torch would load. Throws UnsupportedError for compressed or encrypted values.
std::vector<DcpFile> dcp_items(const InputFile& metadata);

// Adds `more` to `items`: sorted, each range once.
void merge_items(std::vector<DcpItem>& items, std::vector<DcpItem> more);

}  // namespace dsckpt
