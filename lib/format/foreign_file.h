// What a file that is no checkpoint looks like, for messages a user can act on.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "dsckpt/error.h"
#include "io/input_file.h"

namespace dsckpt {

// The error for a file that is not `expected` ("a file written by torch.save"). It says what the
// file looks like: empty, zeros, a Git LFS pointer, HTML, text, a compressed file, tar, HDF5,
// safetensors, a pickle. UnsupportedError for the tar files of torch 0.1 and what DataStates wrote,
// CorruptError for the rest. Reads the first bytes only, and the header of what looks like
// safetensors.
Error foreign_file(const InputFile& file, std::string_view expected);

// Where a file of DataStates' checkpoint engine (DeepSpeed's `datastates_ckpt`) has its pickle:
// offsets in the file, one for each entry of the header that may say it, each once. None for other
// files. Such a file begins as a safetensors file does: a size, and a JSON header of names and
// offsets.
std::vector<uint64_t> datastates_pickles(const InputFile& file);

}  // namespace dsckpt
