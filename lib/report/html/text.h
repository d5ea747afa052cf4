// Text and numbers for HTML. Whatever a file's text is, what comes out is valid UTF-8 without
// markup.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dsckpt {

// `text` for an element or a quoted attribute. Control characters, and those that turn the
// direction of text, become visible ("\x1b", "\u{202e}"), bytes that are no UTF-8 U+FFFD. What is
// longer than `max` bytes loses its middle to "…".
std::string html_text(std::string_view text, size_t max = 200);

// How many characters, not bytes, are in UTF-8.
size_t character_count(std::string_view utf8);

// A value with `digits` digits after the point, without zeros at the end: "12.5".
std::string decimal(double value, int digits);
// The share of `part` in `whole`: "12.5 %", "< 0.1 %"; "0.0 %" if `whole` is 0.
std::string percent(uint64_t part, uint64_t whole);

}  // namespace dsckpt
