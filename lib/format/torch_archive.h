// Torch archives: files written by torch.save, in both of its serialisations.
//
// Zip (since torch 1.6): records PREFIX/data.pkl, PREFIX/data/KEY, PREFIX/byteorder,
// PREFIX/version; any prefix. Legacy: five concatenated pickles and then the storages. Metadata is
// read at open, tensors only when a plan runs. torch/serialization.py: _load, _legacy_load, _save.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype_names.h"
#include "base/keyed_hash.h"
#include "io/input_file.h"
#include "pickle/pickle.h"
#include "plan/copy_plan.h"
#include "plan/tensor_source.h"

namespace dsckpt {

class ZipLayout;
class ZipReader;

// A tensor as its pickle describes it.
struct TensorInfo {
  DType dtype = DType::float32;
  Shape shape;
  Strides strides;
  int64_t storage_offset = 0;  // elements
  std::string storage_key;     // "7"; in the legacy form, the digits of a pointer
  bool requires_grad = false;
  // The attributes that Python had set on it (_rebuild_from_type_v2 state), e.g. {"ds_id": "0_21"};
  // None if there were none.
  pickle::Value attributes;
};

// Parsed pickles, shared by files with equal ones. The files of many ranks differ in the bytes of
// their tensors, and hardly in their pickles. Any thread.
class SharedPickles {
 public:
  // The document of `bytes`, the same one for equal bytes. Threads that ask at the same time may
  // get documents of their own, and so may all if there are many different ones. Throws as
  // Document::parse.
  std::shared_ptr<const pickle::Document> parse(std::vector<std::byte> bytes,
                                                const pickle::Limits& limits);

 private:
  struct Parsed {
    std::vector<std::byte> bytes;
    std::shared_ptr<const pickle::Document> document;
  };
  std::shared_ptr<const pickle::Document> find(const std::vector<std::byte>& bytes) const;

  mutable std::mutex mutex_;
  KeyedMap<std::string_view, Parsed> parsed_;  // by their bytes
  size_t kept_bytes_ = 0;
};

// One open file. Immutable; any thread. Move-only. The InputFiles table must outlive it.
//
// open() throws CorruptError for a damaged or foreign file, and says what it looks like: empty, a
// text file, a Git LFS pointer, HTML. It throws UnsupportedError for TorchScript archives, tar
// files of torch 0.1, and big-endian files.
class TorchArchive {
 public:
  // With `shared`, files with equal pickles have one document.
  static TorchArchive open(const InputFiles& files, FileId id, SharedPickles* shared = nullptr);
  // A zip that is `part` of a file, like each of torch.distributed.checkpoint's. Throws
  // CorruptError if the file ends before it, UnsupportedError if it is safetensors.
  static TorchArchive open(const InputFiles& files, const Extent& part);
  // Values without any tensor, that no file has in this form. `place` is the range that they are
  // made of; other values of the same file need another.
  static TorchArchive of_values(const InputFiles& files, const Extent& place,
                                pickle::Document values);
  TorchArchive(TorchArchive&&) noexcept;
  TorchArchive& operator=(TorchArchive&&) noexcept;
  ~TorchArchive();

  FileId file() const;
  // The bytes of the file that it covers: all, or those of a part.
  const Extent& extent() const;
  bool is_zip() const;
  // nullptr for the legacy form.
  const ZipReader* zip() const;
  // The zip's top folder, which torch derives from the file name it saved to ("archive" when it
  // saved to a stream); "" for the legacy form.
  std::string_view prefix() const;
  const pickle::Document& document() const;
  const pickle::Value& root() const { return document().root(); }

  // True if `value` is a tensor or nn.Parameter: an object made by a rebuild function of torch.
  // These are torch._utils' _rebuild_tensor, _rebuild_tensor_v2, _rebuild_tensor_v3,
  // _rebuild_parameter and _rebuild_parameter_with_state. torch._tensor._rebuild_from_type_v2 may
  // be around one of them.
  static bool is_tensor(const pickle::Value& value);
  // The tuple that begins with a tensor's storage, its offset there, its sizes and its strides, in
  // this order. Throws CorruptError if `value` is not a tensor or the tuple is too short.
  static pickle::Value view_arguments(const pickle::Value& value);
  // Throws CorruptError if `value` is not a tensor, has a bad shape or does not lie inside its
  // storage.
  TensorInfo info(const pickle::Value& value) const;
  TensorSource tensor(const pickle::Value& value) const;
  // The whole storage that a persistent value names, in one dimension; untyped ones as uint8.
  // Throws CorruptError if `value` is not persistent or the storage is not in the file.
  TensorSource storage(const pickle::Value& value) const;
  // The place of the storage that a persistent value names, whatever its type, even one that
  // tensor() refuses. nullopt if it is not in the file.
  std::optional<Extent> bytes_of_storage(const pickle::Value& value) const;
  // All storages of the file that have any bytes, also those that no tensor is a view of.
  std::vector<Extent> storages() const;
  // For a zip with checksums, the data of every record that has any bytes; else nothing.
  std::vector<Extent> checked_records() const;
  // The element of a tensor of this archive with one element, read now, as a double: a step count,
  // say. Plain numbers are returned as they are; nullopt for anything else. The whole record is
  // read once for its CRC32: throws CorruptError if that is wrong.
  std::optional<double> scalar(const pickle::Value& value) const;

  // Reads every record and checks its CRC32, for callers that cannot make sense of the content.
  // Throws CorruptError for the first wrong one. Does nothing in the legacy form and in zips
  // without checksums.
  void check_records() const;
  // The same for the record of one tensor.
  void check_record_of(const pickle::Value& tensor) const;

  // The CRC32s of the storages of all tensors in `value`, in the order of the pickle. Empty for the
  // legacy form and for zips without checksums.
  std::vector<uint32_t> checksums(const pickle::Value& value) const;
  // The name of the record that byte `offset` of the file belongs to, as header or data. In the
  // legacy form it is "storage KEY"; "" if there is none.
  std::string record_at(uint64_t offset) const;

 private:
  struct Impl;
  explicit TorchArchive(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The sizes (or strides) in a torch.Size object or a plain tuple or list of integers. Throws
// CorruptError if `value` is none of these or a number is negative. Throws UnsupportedError for
// more than kMaxDims.
Shape shape_from_pickle(const pickle::Value& value);

// The changes that import() makes.
struct ImportChanges {
  // The way a tensor lies in its storage.
  struct View {
    pickle::Value arguments;  // TorchArchive::view_arguments
    int64_t storage_offset = 0;
    Strides strides;
  };
  // Tensors whose values are dropped: meta tensors (meta_tensor.h) take their places.
  std::vector<pickle::Value> dropped;
  // New contents of some storages, by their keys, of the same types.
  std::map<std::string, TensorSource> storages;
  // The views of all tensors in one of these storages.
  std::vector<View> views;
};

// Writes the file that torch.save(obj, path) writes (zip, protocol 2), as part of a plan.
//
// Build `document` through it: storage() for the data, tensor() for the values that lie in it. Then
// set the document's root and lay_out(). tensor() numbers storages as it first meets them. torch
// (calculate_storage_offsets) needs these numbers to rise in the pickle. So make tensors, and call
// import(), in the order in which they stand in the root. One thread.
class TorchArchiveWriter {
 public:
  pickle::Document& document() { return document_; }

  using StorageId = size_t;
  // A storage that holds the elements of `data`, row-major.
  StorageId storage(TensorSource data);
  // A view of a storage; `strides` contiguous unless given. Throws InconsistentError if it does not
  // fit, UnsupportedError for complex32, which torch.save refuses too.
  pickle::Value tensor(StorageId storage, Shape shape, int64_t storage_offset = 0,
                       std::optional<Strides> strides = {}, bool requires_grad = false);
  // A contiguous tensor with a storage of its own.
  pickle::Value tensor(TensorSource data);
  // Copies `value`, of another archive, with everything it refers to, as torch.load and torch.save
  // would. Sharing is kept, also between calls with the same archive, which must live until
  // lay_out(). Each storage of its tensors becomes a storage of this archive over the same bytes.
  // It stays whole and shared as it was; storages are numbered in the order of the pickle.
  // Locations stay. Throws as TorchArchive::tensor does: CorruptError, and UnsupportedError for the
  // views of storages that the legacy form may hold.
  pickle::Value import(const TorchArchive& from, const pickle::Value& value) {
    return import(from, value, {});
  }
  // The same, with changes. Once for each archive.
  pickle::Value import(const TorchArchive& from, const pickle::Value& value,
                       const ImportChanges& changes);

  // An archive without a name, detached from the values that its pickle was written from.
  struct Written {
    std::string pickle;
    std::vector<TensorSource> data;  // of the storages, by key
    std::string serialization_id;
  };
  // Writes the pickle. torch makes the serialization id from its own hash of record names and CRCs.
  // Here it is a hash of names, sizes and the pickle; readers only log or compare it. Throws
  // std::logic_error if the root does not meet every storage in the order of the tensor() calls.
  Written write() &&;
  // The archive as a zip with its records in the folder `name`.
  static ZipLayout zip_of(Written archive, std::string name);
  // Adds the output `path` to the plan. Records are named after the file's stem, as torch does.
  static OutputId lay_out(Written archive, PlanBuilder& plan, std::string path);
  OutputId lay_out(PlanBuilder& plan, std::string path) && {
    return lay_out(std::move(*this).write(), plan, std::move(path));
  }

 private:
  struct Storage {
    TensorSource data;
    pickle::Value key;  // None until the storage is first referenced
  };
  void import_storages(const TorchArchive& from, const pickle::Value& value,
                       const ImportChanges& changes);

  pickle::Document document_;
  std::vector<Storage> storages_;
  std::vector<StorageId> order_;  // by key
  // An archive's file, and where it begins there.
  using ArchiveId = std::pair<FileId, uint64_t>;
  static ArchiveId archive_id(const TorchArchive& archive) {
    return {archive.file(), archive.extent().offset};
  }
  std::map<ArchiveId, pickle::Document::Copies> copies_;  // archives may share their pickles
  std::map<std::pair<ArchiveId, std::string>, StorageId> imported_;  // by their keys there
};

}  // namespace dsckpt
