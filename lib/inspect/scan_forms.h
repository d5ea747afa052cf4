// What files and records look like by their first bytes, kFormHead of them, and by their names. For
// the scan only.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/byte_source.h"
#include "io/input_file.h"

namespace dsckpt {

// What pickles are wrapped in and is not unwrapped here: "7z archive". With `may_be_any` also what
// other bytes begin like by chance.
std::optional<std::string_view> container_of(std::string_view head, bool may_be_any);

// Of pickles, and of zips and legacy torch files with pickles in them.
bool is_named_as_pickle(std::string_view name);

bool is_text(std::string_view head);

// PROTO and a number that a protocol may have.
bool has_pickle_header(std::string_view head);

// A length, and a JSON object that it is the length of.
bool is_like_safetensors(const ByteSource& source, std::string_view head);

// Why a file that is like one is none, or has more in it; "" if it is one, or DataStates'.
std::string safetensors_problem(const InputFile& file);

}  // namespace dsckpt
