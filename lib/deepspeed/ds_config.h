// DeepSpeed's configuration (ds_config) as the text of a file.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace dsckpt {

// Reads a file of JSON; comments (// and /* */) are skipped, other extensions of Hjson, which
// DeepSpeed reads too, are not. Throws IoError, and UsageError with line and column for what is not
// JSON, or naming the key for one that comes twice; also for files beyond 16 MiB and for anything
// but an object.
nlohmann::ordered_json load_ds_config(const std::filesystem::path& path);

// `config` as the text of a file that DeepSpeed and Hugging Face read, with a newline at its end.
// An infinite steps_per_print becomes null, which means the same; JSON has no other infinities:
// those, NaN and texts that are not UTF-8 are an UnsupportedError that names the key.
std::string ds_config_text(const nlohmann::ordered_json& config);

// Whether a value is "auto", which Hugging Face fills in at run time.
bool is_auto(const nlohmann::ordered_json& value);

// `config` with every value "auto" replaced by what `source` has under the same keys; where it has
// nothing, "auto" stays.
nlohmann::ordered_json with_autos_from(nlohmann::ordered_json config,
                                       const nlohmann::ordered_json& source);

}  // namespace dsckpt
