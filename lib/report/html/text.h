// Text and numbers for HTML. The output is valid UTF-8 without markup, whatever text a file has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dsckpt {

// `text` for an element or a quoted attribute. Control characters, and characters that change the
// direction of text, become visible ("\x1b", "\u{202e}"). Bytes that are not UTF-8 become U+FFFD.
// Texts longer than `max` bytes lose their middle to "…".
std::string html_text(std::string_view text, size_t max = 200);

// The number of characters, not bytes, in UTF-8.
size_t character_count(std::string_view utf8);

// A value with `digits` digits after the point, without zeros at the end: "12.5".
std::string decimal(double value, int digits);
// The share of `part` in `whole`: "12.5 %", "< 0.1 %"; "0.0 %" if `whole` is 0.
std::string percent(uint64_t part, uint64_t whole);

}  // namespace dsckpt
