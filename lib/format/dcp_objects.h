// The objects that the `.metadata` of torch.distributed.checkpoint (DCP) is made of, as a pickle
// has them. For what reads and writes them only; dcp_metadata.h is for all others.
#pragma once

#include <cstdint>
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

// What a `_StorageInfo` says. Throws CorruptError for none, and UnsupportedError if what lies there
// is compressed or encrypted.
DcpPlace place_of(const pickle::Value& info);

}  // namespace dsckpt::dcp
