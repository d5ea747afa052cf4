// Where the tensors of a file lie, and of what type they are: all that a tool has to know that
// keeps files as they are.
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

// Of a torch archive (its storages) or a safetensors file: by offset; none overlap, none are empty.
// Throws what opening it throws.
std::vector<TypedExtent> typed_extents(const InputFiles& files, FileId id,
                                       SharedPickles* shared = nullptr);

// The whole of a file of `size` bytes as the content of `out`: `parts`, which are as those of
// typed_extents(), as what they are, and all between them as bytes.
void put_file(PlanBuilder& plan, OutputId out, FileId file, uint64_t size,
              const std::vector<TypedExtent>& parts);

}  // namespace dsckpt
