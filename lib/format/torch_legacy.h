// The legacy serialisation of torch.save (default until torch 1.6): five pickles in a row, then the
// storages. Source: torch/serialization.py _legacy_save, _legacy_load; layout in FORMATS.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/extent.h"
#include "base/keyed_hash.h"
#include "dsckpt/dtype.h"
#include "io/input_file.h"
#include "pickle/pickle.h"

namespace dsckpt {

// The fields of a persistent id of torch: ("storage", class, key, location, numel). The legacy form
// adds a sixth, None or (view_key, offset, numel): a piece of the storage.
struct StorageId {
  std::string key;
  DType dtype = DType::uint8;  // uint8 if the storage is untyped
  int64_t numel = 0;           // elements of the whole storage
  uint64_t nbytes = 0;         // bytes of the whole storage
  uint64_t view_begin = 0;     // bytes; the piece that tensors see
  uint64_t view_end = 0;

  // Throws CorruptError if `id` does not have this form or its key is longer than any of torch's.
  // Throws UnsupportedError for classes of other libraries and of quantised types.
  static StorageId parse(const pickle::Value& id);
};

// The key of the storage that a persistent value names, of whatever type. Nothing if it names none,
// or if parse() refuses the length of its key.
std::optional<std::string> storage_key(const pickle::Value& persistent);

// Values of one document, by Value::identity().
using ValueSet = std::unordered_set<const void*>;

// The persistent values reachable from `root`, in the order in which a pickler meets them. Values
// of `without` are not entered. With `references`, it counts there how often each tuple and
// persistent value is referred to, by identity().
std::vector<pickle::Value> persistent_values(
    const pickle::Value& root, const ValueSet& without = {},
    std::unordered_map<const void*, size_t>* references = nullptr);

struct TorchLegacy {
  pickle::Document document;
  KeyedMap<std::string, Extent> storages;  // by key

  // Reads a file of TorchForm::pickles. Memory holds the pickles, never the storages. Throws as
  // TorchArchive::open.
  static TorchLegacy read(const InputFile& file, FileId id);
};

}  // namespace dsckpt
