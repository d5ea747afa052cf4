// Recognises files and records by their first kFormHead bytes, and by their names. For the scan
// only.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/byte_source.h"
#include "io/input_file.h"

namespace dsckpt {

// The kind of a container that is not unpacked here: "7z archive". With `may_be_any`, also kinds
// that other bytes may resemble by chance.
std::optional<std::string_view> container_of(std::string_view head, bool may_be_any);

// True for names of pickles, and of zips and legacy torch files with pickles in them.
bool is_named_as_pickle(std::string_view name);

bool is_text(std::string_view head);

// True if it begins with PROTO and a valid protocol number.
bool has_pickle_header(std::string_view head);

// True if it begins with a length, and a JSON object of that length.
bool is_like_safetensors(const ByteSource& source, std::string_view head);

// The reason why a file that looks like safetensors is none, or has more in it; "" if it is one, or
// DataStates'.
std::string safetensors_problem(const InputFile& file);

}  // namespace dsckpt
