// The same data in fewer bytes: packed files, and checkpoints stripped of data no longer needed.
#pragma once

#include <cstdint>
#include <filesystem>

#include "dsckpt/checkpoint.h"
#include "dsckpt/export.h"
#include "dsckpt/job.h"

namespace dsckpt {

// Plans all files of the folder `input`, at any depth, or the file `input` alone. They keep the
// names of their contents. Links count as their targets. Throws UsageError for a link that leaves
// the folder, unless `follow_links`. Broken links, links to a folder around them, special files,
// and unfinished outputs (.dsckpt-staging-*) are left out, with a note. Torch archives and
// safetensors are planned tensor by tensor, so that packing knows the types. Files that cannot be
// read as either are planned as plain bytes, with a note. Run the job with RunOptions::pack. With
// `sha256` the SHA-256 of each content is stored too, which costs an extra pass. Throws UsageError
// if there is no file, IoError, and InconsistentError for a content that exists in two forms.
// `progress` is as SourceOptions::progress.
DSCKPT_EXPORT Job plan_pack(const std::filesystem::path& input, bool sha256 = false,
                            bool follow_links = false, Progress* progress = nullptr);

// Plans the same files, unpacked. With `sha256` the contents are compared with their stored hashes
// before anything is written. The run then throws CorruptError for the first that differs,
// UsageError if no hash was stored.
DSCKPT_EXPORT Job plan_unpack(const std::filesystem::path& input, bool sha256 = false,
                              bool follow_links = false, Progress* progress = nullptr);

// The part of a checkpoint that stripping keeps.
enum class Keep : uint8_t {
  // The weights: masters, buffers, frozen parameters, tied names, and everything that is not a
  // tensor.
  // The optimizer states are left out, and so are the model's own copies of weights that have
  // masters. In the pickles, tensors of torch's `meta` device take their places. At stage 0 all
  // weights of the model stay.
  weights,
  // Everything that DeepSpeed loads. Bytes of storages that no tensor uses are left out.
  resume,
};
DSCKPT_EXPORT const char* to_string(Keep keep);

// Plans OUTPUT/TAG/ with the same files, OUTPUT/latest (latest_universal of a universal
// checkpoint), and copies of the files beside the shards. Files that lose nothing are copied byte
// for byte. Others become what torch.save would write, even from the legacy form. Every tensor that
// stays keeps its value, shape, dtype and flags, and shares its storage with the same tensors. The
// source must be open with SourceOptions::optimizer_states for Keep::resume, and without for
// Keep::weights. Throws UnsupportedError, with Keep::weights only, for files that cannot be
// rewritten.
DSCKPT_EXPORT Job plan_strip(const Source& source, Keep keep);

}  // namespace dsckpt
