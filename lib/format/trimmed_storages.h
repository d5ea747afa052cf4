// Trimmed storages: an archive's storages without the bytes that no tensor uses. torch.save writes
// such bytes when it saves a slice of a large tensor.
#pragma once

#include <cstdint>
#include <vector>

#include "format/torch_archive.h"

namespace dsckpt {

struct TrimmedStorages {
  ImportChanges changes;  // for TorchArchiveWriter::import() of `root`
  uint64_t before = 0;    // bytes of all storages in the file
  uint64_t after = 0;     // bytes of those that are left
};

// Trims the storages to the bytes that tensors reachable from `root`, a value of `archive`, use
// once those in `dropped` have lost their values. Values, shapes and sharing stay. Strides stay
// too, except for a tensor with gaps between its rows that is alone in its part of a storage: its
// rows move together. A storage that anything other than a tensor refers to stays whole. A value of
// `dropped` keeps its values if it occurs in `root` more often than `dropped` names it.
//
// Throws CorruptError as TorchArchive::info. Throws UnsupportedError for storages of unknown types,
// and for the views of storages that the legacy form may hold.
TrimmedStorages trim_storages(const TorchArchive& archive, const pickle::Value& root,
                              const std::vector<pickle::Value>& dropped);

}  // namespace dsckpt
