// The model-states file of a resharded checkpoint.
#pragma once

#include <cstdint>
#include <string_view>

#include "format/torch_archive.h"
#include "reshard/rank_file.h"

namespace dsckpt {

// The model-states file that the one of rank `rank` is made of: at stage 3 it goes on in the
// rank's own, and further ranks get rank 0's.
const CheckpointFile& model_file_for(const ShardSource& from, uint32_t rank);

// Its keys are those of that file, in their order: what is of the ranks or of the layout is made
// anew, all else copied, but that a run from weights leaves out what is not of its model. What old
// releases did not write comes at the end.
TorchArchiveWriter::Written write_model_file(const ShardSource& from, uint32_t rank);

// Whether a run from weights gets a value of the key.
bool is_written_at_start(std::string_view key);

}  // namespace dsckpt
