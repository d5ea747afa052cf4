// A pickle in which some opcodes are others: most of it stays what a reader expects.
#pragma once

#include <string>
#include <string_view>

#include "base/bytes.h"

namespace dsckpt {

// `pickle` changed by the bytes of `edits`, which may be any. Values take the places of values,
// numbers and texts become others, and opcodes are left out, repeated, or put in. Without edits it
// is `pickle`.
std::string edited_pickle(std::string_view pickle, ByteSpan edits);

}  // namespace dsckpt
