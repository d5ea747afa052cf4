// The places and types of a file's tensors: enough for a tool that keeps files as they are.
#pragma once

#include <vector>

#include "base/extent.h"
#include "dsckpt/dtype.h"
#include "format/torch_archive.h"
#include "io/input_file.h"
#include "plan/copy_plan.h"

namespace dsckpt {

struct TypedExtent {
  Extent extent;
  DType dtype = DType::uint8;
};

// The tensors of a safetensors file, or the storages of a torch archive, sorted by offset. None
// overlap, none are empty. Throws the errors of opening it.
std::vector<TypedExtent> typed_extents(const InputFiles& files, FileId id,
                                       SharedPickles* shared = nullptr);

// Puts the whole file, of `size` bytes, as the content of `out`. `parts`, as from typed_extents(),
// keep their types; all other bytes are plain.
void put_file(PlanBuilder& plan, OutputId out, FileId file, uint64_t size,
              const std::vector<TypedExtent>& parts);

}  // namespace dsckpt
