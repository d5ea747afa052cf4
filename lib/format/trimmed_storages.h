// Trimmed storages: an archive's storages without the bytes that none of its tensors reaches, such
// as what torch.save writes of a large tensor when a slice of it is saved.
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

// What tensors that are reachable from `root`, a value of `archive`, leave of its storages, once
// those in `dropped` have lost their values. Values, shapes and sharing stay. Strides stay, but for
// a tensor alone in its part of a storage whose rows lie apart: these move together. A storage that
// anything else than a tensor refers to stays whole. A value of `dropped` that is also somewhere
// else in `root` than `dropped` names it, as often as it is there, keeps its values.
//
// Throws CorruptError as TorchArchive::info, UnsupportedError for storages of types that this
// library does not know and for the views of storages that the legacy form may hold.
TrimmedStorages trim_storages(const TorchArchive& archive, const pickle::Value& root,
                              const std::vector<pickle::Value>& dropped);

}  // namespace dsckpt
