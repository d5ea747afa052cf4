// The uses of the bytes on disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "inspect/contents.h"
#include "io/input_file.h"

namespace dsckpt {

// Bytes of one kind, under one of these names:
//
//   fp32 masters         trainable parameters as the optimizer has them
//   exp_avg, ...         a state of the optimizer, under its name
//   weights (bfloat16)   parameters as the model has them, by type
//   tensors (float32)    of paths that are not checkpoints, by type
//   frozen parameters    those the optimizer does not own
//   buffers              the module's persistent buffers
//   padding and copies   of flat groups: padding, alignment, and what other ranks have too
//   remains of lost tensors of a damaged checkpoint: padding and copies of flat groups, and what is
//                        left of tensors that are lost in part
//   other tensors        steps, and whatever else a program saved
//   unreachable          in storages, but in no tensor: what a view keeps alive ("bloat")
//   pickles and headers  all the rest of the files that were opened
struct BytesOfKind {
  std::string kind;
  uint64_t bytes = 0;
  // Bytes on disk, fewer if the file is compressed. Tensors that share a frame share its bytes.
  uint64_t stored = 0;
};

// The bytes of one file, each of one kind. Bytes that two tensors share count once, under the first
// of their kinds in the list above.
struct FileBytes {
  FileId file = 0;
  uint64_t bytes = 0;
  uint64_t stored = 0;             // on the disk
  std::vector<BytesOfKind> kinds;  // in the order above; none with 0 bytes
};

// The kinds of every file of `contents`, which is open with its states. Throws the errors of
// reading the archives' headers.
std::vector<FileBytes> byte_kinds(const InputFiles& inputs, const Contents& contents);

// The kind of `tensor`'s own bytes, one of `contents`.
std::string kind_of_bytes(const Contents& contents, const NamedTensor& tensor);

// The position of a kind in the list above; states share one, and so do types.
size_t kind_rank(std::string_view kind);

// The sums over `files`, in the order above.
std::vector<BytesOfKind> total_kinds(const std::vector<FileBytes>& files);

}  // namespace dsckpt
