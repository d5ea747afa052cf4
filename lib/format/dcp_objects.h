// The pickled objects in the `.metadata` of torch.distributed.checkpoint (DCP). Only for its reader
// and writer; all others use dcp_metadata.h.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "format/dcp_metadata.h"
#include "pickle/pickle.h"

namespace dsckpt::dcp {

inline constexpr std::string_view kMetadata = "torch.distributed.checkpoint.metadata";
inline constexpr std::string_view kFilesystem = "torch.distributed.checkpoint.filesystem";

// The attributes of an object of class `module`.`name`, pickled as an object of a plain class.
// Throws CorruptError for anything else that could have given it attributes.
pickle::Value attributes_of(const pickle::Value& value, std::string_view module,
                            std::string_view name);

// Throws UnsupportedError, "written by a newer torch", if `attributes` of class `name` has keys
// other than `known` that are not None. Such keys may change the meaning of the others.
void refuse_unknown(const pickle::Value& attributes, std::string_view name,
                    std::initializer_list<std::string_view> known);

// The same for a class with `count` members; `known` of them are known.
[[noreturn]] void refuse_members(std::string_view name, size_t count, size_t known);

// The place in a `_StorageInfo`. Throws CorruptError if it is none.
DcpPlace place_of(const pickle::Value& info);

// Throws UnsupportedError if the bytes at a `_StorageInfo` are compressed or encrypted, or if a
// newer torch says more of them.
void check_form(const pickle::Value& info);

}  // namespace dsckpt::dcp
