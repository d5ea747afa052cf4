// The form of a file as torch sees it, decided once for all tools. Source: torch/serialization.py
// load, _is_zipfile, _legacy_load; tarfile.py TarInfo.frombuf.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "io/input_file.h"

namespace dsckpt {

enum class TorchForm : uint8_t {
  zip,      // it begins with a record: torch looks no further, whatever else it might be
  tar,      // what torch 0.1 wrote: tried before the pickles, whatever these are
  pickles,  // it begins as a pickle of torch's magic number does: the legacy form
  none,     // torch.load fails
};

// torch.serialization.MAGIC_NUMBER, little-endian as in a pickle.
inline constexpr std::string_view kTorchMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

// The form, from the first bytes of a file: kFormHead of them are enough.
inline constexpr size_t kFormHead = 512;
TorchForm torch_form(std::string_view head);
TorchForm torch_form(const InputFile& file);

// True if Python's tarfile opens a file that begins so: a header of any age with a correct
// checksum.
bool is_tar(std::string_view head);

}  // namespace dsckpt
