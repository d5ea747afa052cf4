// config.json of the transformers library: the type that it says the weights have.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "dsckpt/dtype.h"

namespace dsckpt {

// `dtype`, or `torch_dtype` as it was called before transformers 4.56, of the configuration or, if
// it has none, of the first of its parts (NAME_config). nullopt if none is named, or none that
// torch has, and if `text` is no JSON.
std::optional<DType> dtype_in_config(std::string_view text);

// The class of transformers that the configuration is of (architectures[0]), or "AutoModel" if it
// names none that is a word of Python.
std::string architecture_in_config(std::string_view text);

// `text` with `dtype` in the place of each type that it names, itself and in its parts; not how it
// is quantized (quantization_config). All other bytes stay. What is no JSON comes back as it is.
std::string config_with_dtype(std::string_view text, DType dtype);

}  // namespace dsckpt
