// The files of a checkpoint of torch.distributed.checkpoint, and the tensors in them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/layout.h"
#include "format/dcp_metadata.h"
#include "format/torch_archive.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// A value of one of the folders.
struct DcpEntry {
  const DcpValue* value = nullptr;
  size_t folder = 0;

  const std::string& name() const { return value->name; }
  bool is_tensor() const { return value->tensor.has_value(); }
};

// The values of the folders that draft.folder.dcp_metadata lists, and the files that they lie in.
class DcpFiles {
 public:
  // Opens all files, into draft.files.data, and says of each which parts it has
  // (InputFiles::set_parts). Throws InconsistentError for missing files, all of them in one
  // message. Throws CorruptError for places outside the folder, beyond a file's end and over each
  // other, and the errors of read_dcp_metadata(). The draft must outlive it. With
  // draft.options.allow_missing, data files that are missing, or shorter than the metadata says,
  // are lost (salvage.h), unless all are.
  explicit DcpFiles(CheckpointDraft& draft);

  // The values of all folders, in their order, without those that are not tensors and lie in lost
  // files. Throws InconsistentError for a name that comes twice.
  std::vector<DcpEntry> entries() const;

  // The names of values that are not supported, by the reason (DcpValue::unsupported).
  std::map<std::string, std::vector<std::string>> unsupported() const;

  // Throws UnsupportedError if the bytes of the value may not be what its description says.
  void check_supported(const DcpEntry& entry) const;
  // True if it is not supported and need not be, with draft.options.allow_missing.
  bool is_left_out(const DcpEntry& entry) const {
    return draft_.options.allow_missing && !entry.value->unsupported.empty();
  }

  // True if any part of it lies in a lost file.
  bool is_lost(const DcpEntry& entry) const;
  bool is_lost(FileId file) const { return lost_.contains(file); }
  // True if any value that is not a tensor is lost or left out.
  bool lacks_values() const;

  // The `.metadata` that lists a value.
  FileId metadata_file(const DcpEntry& entry) const { return folders_[entry.folder].metadata_file; }
  std::string metadata_name(const DcpEntry& entry) const { return display(metadata_file(entry)); }

  Extent extent_of(const DcpEntry& entry, const DcpPlace& place) const;

  // The archive of a value that is not a tensor, or of a tensor in one chunk. Throws as
  // TorchArchive::open and check_supported(), and UnsupportedError for a tensor in several.
  TorchArchive open_value(const DcpEntry& entry) const;

  // The number of ranks that have written, by the names of their files ("__RANK_NUMBER.distcp").
  uint32_t ranks() const;

 private:
  struct Folder {
    std::filesystem::path path;
    FileId metadata_file = 0;
    DcpMetadata metadata = {};
    std::map<std::string, FileId> files = {};  // by their names there
  };

  std::string display(FileId file) const { return draft_.inputs[file].display(); }

  void open_files();

  // Has a stand-in for a file of the folder.
  void lose(Folder& folder, const std::string& file, std::string why);
  void lose_cut_off();

  void set_parts();

  CheckpointDraft& draft_;
  std::vector<Folder> folders_;
  std::set<FileId> lost_;  // draft.lost_ids
};

// Tensors put together from their chunks: those that are wanted, opened all at once.
class DcpTensors {
 public:
  // Both must outlive it.
  DcpTensors(const CheckpointDraft& draft, const DcpFiles& files) : draft_(draft), files_(files) {}

  // Throws as DcpFiles::check_supported().
  void want(const DcpEntry& entry);

  // Opens all chunks that are wanted. Throws as TorchArchive::open and tensor().
  void open();

  // The whole of a tensor that was wanted, after open(). Throws CorruptError for a chunk whose type
  // or sizes differ from its archive's, and the errors of join_boxes().
  TensorSource whole(const DcpEntry& entry) const;

 private:
  struct Item {
    Extent extent;
    const std::string* name;  // of a tensor whose chunk it is
    std::optional<TensorSource> value;
  };

  const TensorSource& value_of(const DcpEntry& entry, const DcpChunk& chunk) const;

  const CheckpointDraft& draft_;
  const DcpFiles& files_;
  std::vector<Item> items_;
  std::map<std::pair<FileId, uint64_t>, size_t> numbers_;  // of items, by file and offset
};

}  // namespace dsckpt
