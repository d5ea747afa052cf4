#include "weights/companions.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/text.h"
#include "checkpoint/find/folders.h"
#include "checkpoint/find/tag_folder.h"
#include "dsckpt/error.h"
#include "io/content_name.h"
#include "job/job_impl.h"
#include "job/links.h"
#include "job/neighbours.h"
#include "weights/model_config.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

// Returns whether the weights need this file of a Hugging Face model folder. Such files are
// configurations, files of transformers' tokenizers and processors, and models' own Python code.
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

// transformers reads this file first. It names the type of the weights.
constexpr std::string_view kConfig = "config.json";
// from_pretrained would load the adapter's base model instead.
constexpr std::string_view kAdapterConfig = "adapter_config.json";
constexpr uint64_t kMostCompared = InputFile::kMostAtOnce;

bool is_tokenizer_or_processor(std::string_view name) {
  return is_model_companion(name) && !name.ends_with(".py") && name != kConfig &&
         name != kAdapterConfig && name != "generation_config.json";
}

bool has_file(const std::vector<Neighbour>& files, std::string_view name) {
  return std::any_of(files.begin(), files.end(),
                     [&](const Neighbour& file) { return file.destination == name; });
}

// Returns companions sorted by name.
std::vector<Neighbour> companions_in(Folders& folders, const fs::path& folder) {
  std::vector<Neighbour> files;
  for (const fs::path& path : folders[folder].files) {
    std::error_code ignored;
    const std::string name = path.filename().string();
    if (!is_model_companion(name) ||
        !fs::is_regular_file(stored_path(path).value_or(path), ignored)) {
      continue;
    }
    refuse_two_forms(path);
    files.push_back({path, name});
  }
  return files;
}

// Returns the companions in the folder that the user gave.
std::vector<Neighbour> companions_given(Folders& folders, const fs::path& folder) {
  std::error_code failed;
  const fs::file_status status = fs::status(folder, failed);
  if (status.type() == fs::file_type::not_found) {
    throw no_such_folder(folder);
  }
  if (!failed && !fs::is_directory(status)) throw UsageError(folder.string() + ": is not a folder");
  std::vector<Neighbour> files = companions_in(folders, folder);
  if (has_file(files, kConfig)) return files;
  const std::string message = folder.string() + ": has no config.json";
  if (!has_file(files, kAdapterConfig)) throw UsageError(message);
  throw UsageError(message).with_hint(
      "it is the folder of a PEFT adapter: --peft DIR writes the adapter, or give the base model's "
      "folder");
}

// verl saves the model's configuration and tokenizer in this folder: verl/utils/checkpoint.
constexpr std::string_view kHuggingFace = "huggingface";

// Returns the folders where a run may save the model's files beside its checkpoints. These are the
// folder of the shards, that of `latest`, and `huggingface` in each of them.
std::vector<fs::path> folders_beside(const Checkpoint& checkpoint) {
  std::vector<fs::path> folders{checkpoint.tag_folder()};
  std::error_code failed;
  if (!fs::is_directory(folders.front(), failed)) return {};
  if (checkpoint.facts().from_weights()) return folders;
  const fs::path above = fs::weakly_canonical(folders.front(), failed).parent_path();
  const fs::path& named = checkpoint.folder().named;
  // A tag may be two folders deep. Then this is the folder above both.
  if (!failed && !fs::equivalent(above, named, failed)) folders.push_back(above);
  if (named != folders.front()) folders.push_back(named);
  for (size_t i = 0, count = folders.size(); i < count; ++i) {
    folders.push_back(folders[i] / kHuggingFace);
  }
  return folders;
}

std::vector<Neighbour> companions_beside(Folders& listed, const Checkpoint& checkpoint) {
  const std::vector<fs::path> folders = folders_beside(checkpoint);
  std::vector<Neighbour> best;
  for (const fs::path& folder : folders) {
    std::error_code failed;
    if (!fs::is_directory(folder, failed)) continue;
    std::vector<Neighbour> files = companions_in(listed, folder);
    const bool is_model = has_file(files, kConfig);
    if (best.empty() || is_model) best = std::move(files);
    if (is_model) break;
  }
  return best;
}

std::vector<Neighbour> companions_of(const Checkpoint& checkpoint, const WeightsOptions& options) {
  const std::shared_ptr<Folders>& known = checkpoint.folder().folders;
  const auto folders = known ? known : std::make_shared<Folders>();
  return options.hf_config.empty() ? companions_beside(*folders, checkpoint)
                                   : companions_given(*folders, options.hf_config);
}

std::string text_of_file(const InputFile& file) {
  const std::vector<std::byte> bytes = file.read(0, file.size());
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A file for the output folder.
struct Companion {
  Neighbour file;
  std::optional<std::string> text = {};  // unset: the file's own text
};

// Returns `file`, with the written type if it is a configuration that names another type.
Companion companion_of(InputFiles& inputs, Neighbour file, std::optional<DType> written,
                       const ModelChanges& changes) {
  if (file.destination != kConfig || (!written && changes.empty())) return {std::move(file)};
  const InputFile& input = inputs[inputs.add(file.source)];
  if (input.size() > kMostCompared) return {std::move(file)};
  const std::string text = text_of_file(input);
  std::string changed = text;
  if (!changes.empty()) {
    const std::optional<std::string> with = config_with_changes(text, changes);
    if (!with) {
      throw InconsistentError({.file = file.source.string(), .member = "vocab_size"},
                              "is not the number of rows that the embeddings of the base have");
    }
    changed = *with;
  }
  if (written) changed = config_with_dtype(changed, *written);
  if (changed == text) return {std::move(file)};
  return {std::move(file), std::move(changed)};
}

// Adds notes on the changes that config.json needs if it is not copied.
void note_changes(const ModelChanges& changes, std::vector<std::string>& notes) {
  if (changes.untied) {
    notes.emplace_back(
        "the output embeddings are no longer tied to the input embeddings: config.json needs "
        "tie_word_embeddings false");
  }
  if (changes.vocabulary) {
    notes.push_back("the embeddings have " + counted(changes.vocabulary->after, "row") +
                    " now: config.json needs this as vocab_size");
  }
}

enum class Present : uint8_t { no, itself, same, same_but_type, another };

// Compares `companion` with the file in its place in the output folder.
Present present(InputFiles& inputs, const Companion& companion, const fs::path& there,
                std::optional<DType> written) {
  std::error_code failed;
  const fs::file_status status = fs::symlink_status(there, failed);
  if (status.type() == fs::file_type::not_found) return Present::no;
  if (fs::equivalent(there, companion.file.source, failed)) {
    return companion.text ? Present::another : Present::itself;
  }
  if (!fs::is_regular_file(there, failed)) return Present::another;
  const InputFile old(there);
  const InputFile& input = inputs[inputs.add(companion.file.source)];
  if (std::max(old.size(), input.size()) > kMostCompared) return Present::another;
  const std::string old_text = text_of_file(old);
  const std::string text = companion.text ? *companion.text : text_of_file(input);
  if (old_text == text) return Present::same;
  const bool is_config = companion.file.destination == kConfig && written;
  return is_config && config_with_dtype(old_text, *written) == text ? Present::same_but_type
                                                                    : Present::another;
}

// True if the config.json of `files` can be a configuration.
bool is_configuration(const std::vector<Neighbour>& files) {
  const auto config = std::find_if(files.begin(), files.end(), [](const Neighbour& file) {
    return file.destination == kConfig;
  });
  const InputFile file(config->source);
  return file.size() > kMostCompared || parse_json(text_of_file(file)).is_object();
}

std::vector<std::string> missing_of(const std::vector<Neighbour>& files,
                                    const WeightsFormat& format) {
  if (!has_file(files, kConfig)) {
    if (has_file(files, kAdapterConfig)) {
      return {
          "the configuration beside the shards is a PEFT adapter's, not a model's: --peft DIR "
          "writes the adapter"};
    }
    if (files.empty() && &format != &kSafetensors) return {};
    return {
        "there is no config.json beside the checkpoint, and transformers needs one; --hf-config "
        "DIR copies a model's, with its tokenizer"};
  }
  if (!is_configuration(files)) {
    return {
        "config.json is copied, but it is not a JSON object, and transformers cannot read it; "
        "--hf-config DIR copies a model's, with its tokenizer"};
  }
  const bool has_tokenizer = std::any_of(files.begin(), files.end(), [](const Neighbour& file) {
    return is_tokenizer_or_processor(file.destination);
  });
  if (has_tokenizer) return {};
  return {
      "config.json is copied, but there is no tokenizer or processor beside it: --hf-config DIR "
      "copies a model's"};
}

}  // namespace

std::vector<std::string> lay_out_companions(InputFiles& inputs, const Checkpoint& checkpoint,
                                            const WeightsOptions& options,
                                            std::optional<DType> written, PlanBuilder& plan,
                                            std::vector<std::string>& notes,
                                            const ModelChanges& changes) {
  const bool given = !options.hf_config.empty();
  if (!given && !options.companions) {
    note_changes(changes, notes);
    return {};
  }
  std::vector<Neighbour> files = companions_of(checkpoint, options);
  if (!has_file(files, kConfig)) note_changes(changes, notes);
  if (given && !is_configuration(files)) {
    throw InconsistentError({.file = (options.hf_config / kConfig).string()},
                            "is not a JSON object, and transformers cannot read it")
        .with_hint("--hf-config none copies no configuration");
  }
  std::vector<std::string> missing;
  if (!given) missing = missing_of(files, *options.format);

  const std::vector<fs::path> folders =
      given ? std::vector<fs::path>{} : folders_beside(checkpoint);
  std::vector<Neighbour> copied;
  for (Neighbour& file : files) {
    if (file.destination == kAdapterConfig) continue;
    if (!given && leads_out(file.source, folders)) {
      notes.push_back(file.destination +
                      " is a link out of the checkpoint and is left out; --hf-config " +
                      shell_word(file.source.parent_path().string()) + " copies it");
      continue;
    }
    const Companion companion = companion_of(inputs, std::move(file), written, changes);
    if (!given && !options.companions->empty()) {
      const Present there =
          present(inputs, companion, *options.companions / companion.file.destination, written);
      const bool written_anew = there == Present::same || there == Present::same_but_type;
      if (there != Present::no && !(written_anew && options.replace)) {
        if (there == Present::same_but_type) {
          notes.push_back(companion.file.destination +
                          " is in the output folder already, of weights of another type; --force "
                          "replaces it");
        } else if (there == Present::another) {
          notes.push_back(companion.file.destination +
                          " is in the output folder already, and is not changed");
        }
        continue;
      }
    }
    if (companion.text) {
      put_text(plan, companion.file.destination, *companion.text);
    } else {
      copied.push_back(companion.file);
    }
  }
  lay_out_neighbours(inputs, copied, plan);
  return missing;
}

std::optional<std::string> config_text(const Checkpoint& checkpoint,
                                       const WeightsOptions& options) {
  for (const Neighbour& file : companions_of(checkpoint, options)) {
    if (file.destination != kConfig) continue;
    const InputFile config(file.source);
    if (config.size() > kMostCompared) return std::nullopt;
    return text_of_file(config);
  }
  return std::nullopt;
}

std::optional<DType> configured_dtype(const Source& source, const WeightsOptions& options) {
  const std::optional<std::string> config = config_text(*source->checkpoint, options);
  return config ? dtype_in_config(*config) : std::nullopt;
}

}  // namespace dsckpt
