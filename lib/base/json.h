// JSON of others: whatever it is, it is read and kept in little more stack than a value takes.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace dsckpt {

// How many arrays and objects may lie in each other. Copying, comparing and writing a value take
// stack for each level, and so does reading CBOR.
inline constexpr size_t kMaxJsonDepth = 100;

// `discarded` (nlohmann's is_discarded(), of which no member can be asked) if `text` is no JSON, or
// is nested more deeply. Of a key that comes twice the last value counts, as in Python.
nlohmann::json parse_json(std::string_view text);
// The same of CBOR (RFC 8949).
nlohmann::json parse_cbor(std::string_view bytes);

// JSON text of one line; text that is not UTF-8 is written with replacement characters.
std::string dump(const nlohmann::json& value);

}  // namespace dsckpt
