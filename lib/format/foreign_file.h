// What a file that is no checkpoint looks like, for messages a user can act on.
#pragma once

#include <string_view>

#include "dsckpt/error.h"
#include "io/input_file.h"

namespace dsckpt {

// The error for a file that is not `expected` ("a file written by torch.save"). It says what the
// file looks like: empty, zeros, a Git LFS pointer, HTML, text, a compressed file, tar, HDF5,
// safetensors, a pickle. UnsupportedError for the tar files of torch 0.1, CorruptError for the
// rest. Reads the first bytes only.
Error foreign_file(const InputFile& file, std::string_view expected);

}  // namespace dsckpt
