// The `.metadata` of a checkpoint of torch.distributed.checkpoint (DCP). It lists the values and
// their places in the files beside it.
//
// torch/distributed/checkpoint/metadata.py (Metadata, TensorStorageMetadata, ChunkStorageMetadata,
// MetadataIndex) and filesystem.py (_StorageInfo). FORMATS.md has the pickle, class by class.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "dsckpt/dtype.h"
#include "io/input_file.h"

namespace dsckpt {

inline constexpr std::string_view kDcpMetadataName = ".metadata";
inline constexpr std::string_view kDcpDataSuffix = ".distcp";

// A range of a file beside the `.metadata`: one whole archive as torch.save writes it.
struct DcpPlace {
  std::string file;  // relative to the folder, as it is written there
  uint64_t offset = 0;
  uint64_t size = 0;
};

// A box of a tensor's elements, saved by one rank.
struct DcpChunk {
  Shape offsets = {};  // of its first element, a number for each dimension
  Shape sizes = {};
  DcpPlace place = {};  // of an archive of a tensor of these sizes
};

struct DcpTensor {
  DType dtype = DType::float32;
  Shape shape = {};
  bool requires_grad = false;
  std::vector<DcpChunk> chunks = {};  // in their order in the file
};

// A step on the path to a value in the state_dict before it was flattened.
using DcpStep = std::variant<std::string, int64_t>;
using DcpPath = std::vector<DcpStep>;
// The steps joined with dots, as torch does it.
std::string dcp_key(std::span<const DcpStep> path);

struct DcpValue {
  std::string name;                      // the key of the flat state_dict, "optim.state.w.exp_avg"
  std::optional<DcpTensor> tensor = {};  // else it is a pickle
  DcpPlace pickle = {};                  // of an archive that has any other value
  DcpPath path = {};                     // `planner_data`; empty where it has none
  // Why its bytes may not be what the rest says, such as "written by a newer torch: ..."; else "".
  // A value of an unknown class counts as a tensor without chunks.
  std::string unsupported = {};
};

struct DcpMetadata {
  // In the order of the state_dict, which `planner_data` has. Values that it lacks follow in their
  // order in the file. Names are distinct.
  std::vector<DcpValue> values = {};
};

// Calls `take` with the name of each value and each of its places in the files.
template <typename Take>
void for_each_place(const DcpMetadata& metadata, const Take& take) {
  for (const DcpValue& value : metadata.values) {
    if (!value.tensor) {
      take(value.name, value.pickle);
      continue;
    }
    for (const DcpChunk& chunk : value.tensor->chunks) {
      if (numel(chunk.sizes) != 0) take(value.name, chunk.place);
    }
  }
}

// Adds the names of unsupported values to `names`, by the reason.
void collect_unsupported(const DcpMetadata& metadata,
                         std::map<std::string, std::vector<std::string>>& names);
// "2 values are left out, written by a newer torch: ...: a, b": a reason, and the names of its
// values.
std::string unsupported_text(const std::string& why, const std::vector<std::string>& names);

// The path of DcpPlace::file for a `.metadata` in `folder`; nullopt if it leaves the folder.
std::optional<std::filesystem::path> dcp_file_path(const std::filesystem::path& folder,
                                                   const std::string& file);

// Reads it as data. Throws IoError. Throws CorruptError if it is not a pickle or is not built as
// torch builds it. It must not have a value without a place, a place without a value, or a path
// that does not make its name. Chunks must have the dimensions of their tensor. Throws
// UnsupportedError if a newer torch says more of all values (DcpValue::unsupported is for one).
DcpMetadata read_dcp_metadata(const InputFile& file);

// The pickle that torch reads as `metadata`: equal strings, classes and shapes are pickled once.
std::string dcp_metadata_pickle(const DcpMetadata& metadata);

}  // namespace dsckpt
