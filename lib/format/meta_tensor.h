// Meta tensors: torch's own form of a tensor on the device "meta". It has a type, a shape and
// strides, but no elements. torch.load rebuilds such tensors; code that then needs a value gets an
// error. ckpt-pack strip leaves one in place of values that it removes. Source: torch/_tensor.py
// _reduce_ex_internal, torch/_utils.py _rebuild_meta_tensor_no_storage.
#pragma once

#include <optional>

#include "base/dtype_names.h"
#include "format/torch_archive.h"
#include "pickle/pickle.h"

namespace dsckpt {

struct MetaTensor {
  DType dtype = DType::float32;
  Shape shape;
  Strides strides;
  bool requires_grad = false;
};

bool is_meta_tensor(const pickle::Value& value);

// Throws CorruptError if it is none, UnsupportedError for a type of torch's that this library
// lacks.
MetaTensor meta_tensor(const pickle::Value& value);

// A meta tensor as a value of `document`.
pickle::Value make_meta_tensor(pickle::Document& document, const MetaTensor& tensor);

// The shape of a tensor of `archive` or of a meta tensor; nullopt for anything else. Throws as
// TorchArchive::info and meta_tensor().
std::optional<Shape> shape_with_or_without_values(const TorchArchive& archive,
                                                  const pickle::Value& value);

}  // namespace dsckpt
