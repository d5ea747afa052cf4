// The same in fewer bytes: packed files, and checkpoints without what nobody needs any more.
#pragma once

#include <cstdint>
#include <filesystem>

#include "dsckpt/checkpoint.h"
#include "dsckpt/export.h"
#include "dsckpt/job.h"

namespace dsckpt {

// All files of the folder `input`, at any depth, or the file `input` alone, under the names of
// their contents. Links count as what they lead to; where one leads out of the folder, UsageError
// is thrown unless `follow_links`. Broken links, links to a folder that they are in, what is
// neither file nor folder, and unfinished outputs (.dsckpt-staging-*) are left out, with a note.
// Torch archives and safetensors are planned tensor by tensor, so that packing sees types; what
// cannot be read as either is planned as bytes, with a note. Run it with RunOptions::pack. With
// `sha256` the SHA-256 of each content is kept, which takes a pass of its own. Throws UsageError if
// there is nothing, IoError, InconsistentError for a content that is there in two forms. `progress`
// as SourceOptions::progress.
DSCKPT_EXPORT Job plan_pack(const std::filesystem::path& input, bool sha256 = false,
                            bool follow_links = false, Progress* progress = nullptr);

// The same files as bytes. With `sha256` they are compared with those that were kept, before
// anything is written: then the run throws CorruptError that names the first that differs, and
// UsageError if none was kept.
DSCKPT_EXPORT Job plan_unpack(const std::filesystem::path& input, bool sha256 = false,
                              bool follow_links = false, Progress* progress = nullptr);

// What a checkpoint is stripped to.
enum class Keep : uint8_t {
  // The weights: masters, buffers, frozen parameters, what is tied, and all that is no tensor. The
  // optimizer's states are left out, and the model's own copies of weights that there are masters
  // of. In the pickles tensors of torch's `meta` device take their places. At stage 0 all weights
  // of the model stay.
  weights,
  // All that DeepSpeed loads. Bytes of storages that no tensor reaches are left out.
  resume,
};
DSCKPT_EXPORT const char* to_string(Keep keep);

// OUTPUT/TAG/ with the same files, OUTPUT/latest (latest_universal of a universal checkpoint), and
// copies of what lies beside the shards. Files that nothing is left out of are copied byte for
// byte; others are what torch.save would write, also where they were of the legacy form. Every
// tensor that stays keeps its value, shape, dtype, flags and whom it shares its storage with.
// `source` has to be open with SourceOptions::optimizer_states for Keep::resume and without for
// Keep::weights. Throws UnsupportedError for what cannot be written anew, with Keep::weights only.
DSCKPT_EXPORT Job plan_strip(const Source& source, Keep keep);

}  // namespace dsckpt
