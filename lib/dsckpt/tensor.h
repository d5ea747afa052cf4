// Tensors of an open Source: their descriptions, and views of their elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dsckpt/dtype.h"
#include "dsckpt/export.h"

namespace dsckpt {

enum class ParamKind : uint8_t {
  trainable,  // owned by the optimizer: there is an fp32 master
  frozen,     // a parameter the optimizer does not own
  buffer,     // a persistent buffer
};
DSCKPT_EXPORT const char* to_string(ParamKind kind);

struct SourceTensor {
  std::string name;
  // "" for the value itself. For an optimizer state, the optimizer's name of it: "exp_avg".
  std::string state;
  ParamKind kind = ParamKind::trainable;
  // fp32 for trained parameters, else the stored type.
  DType dtype = DType::float32;
  Shape shape;
  // For a tied parameter, the name of the entry that owns the tensor; else "".
  std::string alias_of;
  // The number of steps that the optimizer has made with a parameter that has states; nothing if
  // the files do not say.
  std::optional<double> step = {};

  // "layers.0.weight", or for a state "layers.0.weight exp_avg".
  std::string label() const { return state.empty() ? name : name + " " + state; }
  uint64_t bytes() const { return static_cast<uint64_t>(numel(shape)) * size_of(dtype); }
};

// Elements in borrowed memory, which lives as long as `data`.
struct TensorView {
  std::shared_ptr<std::byte> data;  // of the first element
  std::vector<int64_t> strides;     // elements
};

}  // namespace dsckpt
