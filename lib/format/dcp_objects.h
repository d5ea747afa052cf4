// The objects that the `.metadata` of torch.distributed.checkpoint (DCP) is made of, as a pickle
// has them. For what reads and writes them only; dcp_metadata.h is for all others.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "format/dcp_metadata.h"
#include "pickle/pickle.h"

namespace dsckpt::dcp {

inline constexpr std::string_view kMetadata = "torch.distributed.checkpoint.metadata";
inline constexpr std::string_view kFilesystem = "torch.distributed.checkpoint.filesystem";

// The attributes of an object of class `module`.`name`, made as pickle makes those of plain
// classes: nothing else can have given it any. Throws CorruptError for anything else.
pickle::Value attributes_of(const pickle::Value& value, std::string_view module,
                            std::string_view name);

// Throws UnsupportedError, "written by a newer torch", if `attributes` of class `name` has other
// keys than `known` that are not None: what they say may change what the others mean.
void refuse_unknown(const pickle::Value& attributes, std::string_view name,
                    std::initializer_list<std::string_view> known);

// The same of a class with `count` members, where `known` are known.
[[noreturn]] void refuse_members(std::string_view name, size_t count, size_t known);

// What a `_StorageInfo` says. Throws CorruptError for none.
DcpPlace place_of(const pickle::Value& info);

// Throws UnsupportedError if what lies at the place of a `_StorageInfo` is compressed or encrypted,
// or a newer torch says more of it.
void check_form(const pickle::Value& info);

}  // namespace dsckpt::dcp
