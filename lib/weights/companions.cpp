#include "weights/companions.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "dsckpt/error.h"
#include "io/content_name.h"
#include "job/neighbours.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

// Whether a file of a Hugging Face model folder is needed beside the weights: configurations, what
// the transformers library's tokenizers and processors name their files, and the Python code of
// models that bring their own.
bool is_model_companion(std::string_view name) {
  constexpr std::array<std::string_view, 24> kBeginnings{
      "config.json",
      "generation_config.json",
      "adapter_config.json",
      "tokenizer",
      "special_tokens_map",
      "added_tokens",
      "vocab",
      "merges.txt",
      "spiece.model",
      "sentencepiece",
      "spm",
      "source.spm",
      "target.spm",
      "bpe.codes",
      "dict.txt",
      "normalizer.json",
      "entity_vocab",
      "byte_maps",
      "chat_template",
      "preprocessor_config",
      "processor_config",
      "image_processor",
      "video_preprocessor_config",
      "feature_extractor",
  };
  constexpr std::array<std::string_view, 6> kCode{"configuration_",    "modeling_",
                                                  "tokenization_",     "processing_",
                                                  "image_processing_", "feature_extraction_"};
  const auto starts = [&](std::string_view start) { return name.starts_with(start); };
  if (name.ends_with(".py")) return std::any_of(kCode.begin(), kCode.end(), starts);
  return name.ends_with(".tiktoken") || name.ends_with(".jinja") ||
         std::any_of(kBeginnings.begin(), kBeginnings.end(), starts);
}

}  // namespace

void lay_out_companions(InputFiles& inputs, const fs::path& folder, PlanBuilder& plan) {
  std::error_code failed;
  const fs::file_status status = fs::status(folder, failed);
  if (status.type() == fs::file_type::not_found) {
    throw UsageError(folder.string() + ": there is no such folder");
  }
  if (!failed && !fs::is_directory(status)) throw UsageError(folder.string() + ": is not a folder");
  std::vector<Neighbour> files;
  fs::directory_iterator it(folder, failed);
  for (const fs::directory_iterator end; !failed && it != end; it.increment(failed)) {
    std::error_code ignored;
    const fs::path path = content_path(it->path());
    const std::string name = path.filename().string();
    if (it->is_regular_file(ignored) && is_model_companion(name)) {
      refuse_two_forms(path);
      files.push_back({path, name});
    }
  }
  if (failed) throw IoError({.file = folder.string()}, "cannot list", failed.value());
  std::sort(files.begin(), files.end(),
            [](const Neighbour& a, const Neighbour& b) { return a.destination < b.destination; });
  const auto has = [&](std::string_view name) {
    return std::any_of(files.begin(), files.end(),
                       [&](const Neighbour& file) { return file.destination == name; });
  };
  if (has("config.json")) return lay_out_neighbours(inputs, files, plan);
  const std::string message = folder.string() + ": has no config.json";
  if (!has("adapter_config.json")) throw UsageError(message);
  throw UsageError(message).with_hint(
      "it is the folder of a PEFT adapter: --peft DIR writes the adapter, or give the base model's "
      "folder");
}

}  // namespace dsckpt
