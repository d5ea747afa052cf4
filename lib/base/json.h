// Untrusted JSON, read and kept in little more stack than its values take.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace dsckpt {

// The largest depth of nested arrays and objects. Copying, comparing and writing a value use stack
// for each level, and so does reading CBOR.
inline constexpr size_t kMaxJsonDepth = 100;

// A `discarded` value (nlohmann's is_discarded(); its members must not be asked for) if `text` is
// not JSON or is nested more deeply. The last value of a repeated key counts, as in Python.
nlohmann::json parse_json(std::string_view text);
// The same for CBOR (RFC 8949).
nlohmann::json parse_cbor(std::string_view bytes);

// JSON text on one line. Bytes that are not UTF-8 become replacement characters.
std::string dump(const nlohmann::json& value);

}  // namespace dsckpt
