// config.json of the transformers library: the type that it says the weights have.
#pragma once

#include <cstdint>
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

// How a model was changed, besides its values.
struct ModelChanges {
  // The output embeddings are no longer the input embeddings.
  bool untied = false;
  // The number of tokens that it had, and has.
  struct Vocabulary {
    int64_t before;
    int64_t after;
  };
  std::optional<Vocabulary> vocabulary = {};

  bool empty() const { return !untied && !vocabulary; }
};
// `text` with `tie_word_embeddings` false, and each `vocab_size` that is `before` `after`, in the
// configuration and in its parts that are of text models; the first has both in any case. All other
// bytes stay. nullopt if it is no JSON, or has another vocab_size only.
std::optional<std::string> config_with_changes(std::string_view text, const ModelChanges& changes);

}  // namespace dsckpt
