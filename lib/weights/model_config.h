// config.json of the transformers library: the type of the weights in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dsckpt/dtype.h"

namespace dsckpt {

// The type in `dtype`, called `torch_dtype` before transformers 4.56. It is the configuration's
// own, or else that of the first of its parts (NAME_config). nullopt if there is none, if torch
// lacks it, or if `text` is not JSON.
std::optional<DType> dtype_in_config(std::string_view text);

// True if transformers finds a model in `text`: a JSON object with `model_type` or `architectures`.
bool names_model(std::string_view text);

// The transformers class of the configuration (architectures[0]); kAnyArchitecture if it has none
// that is a Python identifier.
inline constexpr std::string_view kAnyArchitecture = "AutoModel";
std::string architecture_in_config(std::string_view text);

// `text` with `dtype` in place of each type in it and in its parts, except in quantization_config.
// All other bytes stay. Text that is not JSON comes back unchanged.
std::string config_with_dtype(std::string_view text, DType dtype);

// The changes of a model, besides its values.
struct ModelChanges {
  // The output embeddings are no longer the input embeddings.
  bool untied = false;
  // The number of tokens, before and after.
  struct Vocabulary {
    int64_t before;
    int64_t after;
  };
  std::optional<Vocabulary> vocabulary = {};

  bool empty() const { return !untied && !vocabulary; }
};
// The configuration `text` with `tie_word_embeddings` false, and `after` for each `vocab_size` of
// `before`. Both change in the configuration and in those of its parts that are of text models; the
// configuration gets both in any case. All other bytes stay. nullopt if it is not JSON, or has only
// another vocab_size.
std::optional<std::string> config_with_changes(std::string_view text, const ModelChanges& changes);

}  // namespace dsckpt
