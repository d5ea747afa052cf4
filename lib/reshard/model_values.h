// Values of a model-states file that are of its parameters: their tensors, shapes and names.
#pragma once

#include <span>
#include <string>

#include "base/keyed_hash.h"
#include "format/torch_archive.h"
#include "pickle/pickle.h"
#include "reshard/module_entry.h"
#include "reshard/rank_file.h"

namespace dsckpt {

// A model-states file in the making.
struct ModelFile : RankFile {
  // Further entries of `module`.
  std::span<const ModuleEntry> more = {};
  // The storages of `module`'s parameters by name, which frozen_param_fragments share.
  KeyedMap<std::string, TorchArchiveWriter::StorageId> storages = {};
};

// Each is made of what the checkpoint's file has under the key, None where it has nothing.

// Where the checkpoint was renamed; else a copy.
pickle::Value names_of_buffers(ModelFile& file, const pickle::Value& saved);
// Between stage 3 and the others parameters become placeholders or the masters, rounded.
// UnsupportedError for a parameter without values.
pickle::Value module_value(ModelFile& file, const pickle::Value& saved);
pickle::Value param_shapes(ModelFile& file, const pickle::Value& saved);
pickle::Value frozen_param_shapes(ModelFile& file, const pickle::Value& saved);
pickle::Value frozen_param_fragments(ModelFile& file, const pickle::Value& saved);
pickle::Value shared_params(ModelFile& file, const pickle::Value& saved);

}  // namespace dsckpt
