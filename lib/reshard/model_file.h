// The model-states file of a resharded checkpoint.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "format/torch_archive.h"
#include "reshard/rank_file.h"

namespace dsckpt {

// The model-states file from which the one of rank `rank` is made. At stage 3 a rank continues its
// own file, and further ranks get rank 0's.
const CheckpointFile& model_file_for(const ShardSource& from, uint32_t rank);

// Its keys are those of that file, in their order. Values of the ranks or of the layout are made
// anew, all others copied. A run from weights leaves out values that are not of its model. Keys
// that old releases did not write come at the end.
// `more` are further entries of `module`. Without `optimizer` stage 0 has None in its place.
TorchArchiveWriter::Written write_model_file(const ShardSource& from, uint32_t rank,
                                             std::span<const ModuleEntry> more = {},
                                             bool optimizer = true);

// True if a run from weights gets a value of the key.
bool is_written_at_start(std::string_view key);

}  // namespace dsckpt
