// Salvage: reading a checkpoint when files of some ranks are lost.
//
// The files of all ranks list the same entries; only the numbers differ. So another rank's file
// stands in for a lost one, under its own id and name, and readers continue normally. Parameters
// with elements in a stand-in are incomplete and are left out. No number of a stand-in is ever
// taken for the lost rank's.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/layout.h"
#include "checkpoint/shard.h"

namespace dsckpt {

// Opens `found`, the existing files of one kind. Opens a stand-in for each of `missing` and for
// each file that cannot be read: another file of the same mp rank. The result is by mp rank and
// data-parallel rank. Adds the lost files to the draft. Throws InconsistentError for an mp rank
// with no file left.
std::vector<Shard> open_with_stand_ins(CheckpointDraft& draft, const std::vector<ShardFile>& found,
                                       const std::vector<ShardName>& missing);

// `other`, of the same mp rank, in the place of the file `name`, which is lost for the reason
// `why`. Adds that to the draft.
Shard stand_in(CheckpointDraft& draft, ShardName name, const Shard& other, std::string why);

// The first of `files` that can be read. Throws the error of the first if none can.
Shard open_first_readable(InputFiles& inputs, const std::vector<ShardFile>& files,
                          const std::filesystem::path& root);

// As many elements of a lost file; nobody knows where they were in it.
TensorSource lost_elements(const Shard& lost, DType dtype, uint64_t count);

// Moves parameters of draft.params that have elements in lost files to draft.incomplete. Equal
// copies that lie in lost files are left out.
void drop_incomplete(CheckpointDraft& draft);

}  // namespace dsckpt
