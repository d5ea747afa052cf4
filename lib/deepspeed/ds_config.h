// DeepSpeed's configuration (ds_config) as the text of a file.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace dsckpt {

// Reads a file of JSON. Comments (// and /* */) are skipped; other extensions of Hjson, which
// DeepSpeed also reads, are not supported. Throws IoError. Throws UsageError with line and column
// for text that is not JSON, and one that names the key for a repeated key. Throws it also for
// files beyond 16 MiB and for anything but an object.
nlohmann::ordered_json load_ds_config(const std::filesystem::path& path);

// `config` as the text of a file for DeepSpeed and Hugging Face, with a newline at its end. An
// infinite steps_per_print becomes null, which means the same. JSON has no infinities: others, NaN
// and texts that are not UTF-8 throw an UnsupportedError that names the key.
std::string ds_config_text(const nlohmann::ordered_json& config);

// True for the value "auto", which Hugging Face fills in at run time.
bool is_auto(const nlohmann::ordered_json& value);

// `config` with every value "auto" replaced by the one of `source` under the same keys. "auto"
// stays if `source` has none.
nlohmann::ordered_json with_autos_from(nlohmann::ordered_json config,
                                       const nlohmann::ordered_json& source);

}  // namespace dsckpt
