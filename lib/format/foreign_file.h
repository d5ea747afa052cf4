// Recognises files that are not checkpoints, for messages a user can act on.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "dsckpt/error.h"
#include "io/input_file.h"

namespace dsckpt {

// The error for a file that is not `expected` ("a file written by torch.save"). It says what the
// file looks like: empty, zeros, a Git LFS pointer, HTML, text, a compressed file, tar, HDF5,
// safetensors, a pickle. UnsupportedError for the tar files of torch 0.1 and for files of
// DataStates, CorruptError for the rest. Reads only the first bytes, and the header of a file that
// looks like safetensors.
Error foreign_file(const InputFile& file, std::string_view expected);

// The offsets at which a file of DataStates' checkpoint engine (DeepSpeed's `datastates_ckpt`) may
// have its pickle. There is one for each header entry that may say it, each offset once; none for
// other files. Such a file begins like a safetensors file: a size, and a JSON header of names and
// offsets.
std::vector<uint64_t> datastates_pickles(const InputFile& file);

}  // namespace dsckpt
