// A pickle in which some opcodes are others: most of it stays what a reader expects.
#pragma once

#include <string>
#include <string_view>

#include "base/bytes.h"

namespace dsckpt {

// `pickle` changed as any bytes of `edits` say: values take the places of values, numbers and texts
// become others, opcodes are left out, repeated, or put in. Without edits it is `pickle`.
std::string edited_pickle(std::string_view pickle, ByteSpan edits);

}  // namespace dsckpt
