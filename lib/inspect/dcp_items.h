// Where a checkpoint of torch.distributed.checkpoint (DCP) has its values, by its `.metadata`:
// torch/distributed/checkpoint/filesystem.py, FileSystemReader. For scan_path.cpp only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/input_file.h"

namespace dsckpt {

// A range of a file that torch.load is given. Several values may share one.
struct DcpItem {
  std::string name;  // of the first value that lies there
  uint64_t offset = 0;
  uint64_t size = 0;
};

// Of one of the files beside the `.metadata`; its name is relative to that one's folder, and may
// lead out of it.
struct DcpFile {
  std::string name;
  std::vector<DcpItem> items;  // each range once, by their offsets
};

// Whether torch takes a file of this name for the pickle that says where all others are.
bool is_dcp_metadata(std::string_view filename);

// By the names of the files. The pickle is read as data. Throws CorruptError for one that is none,
// or is not put together as torch does it: then it cannot be told what would be loaded.
// UnsupportedError if what is stored is compressed or encrypted. IoError.
std::vector<DcpFile> dcp_items(const InputFile& metadata);

// Adds `more` to `items`: sorted, each range once.
void merge_items(std::vector<DcpItem>& items, std::vector<DcpItem> more);

}  // namespace dsckpt
