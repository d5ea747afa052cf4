// Untrusted text, character by character, so that it cannot affect the terminal or page that shows
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dsckpt {

// The result of next_character() for a byte that is not UTF-8.
inline constexpr uint32_t kInvalidCharacter = 0xfffd;

// Removes a character from the front of `text`: a whole one if it is UTF-8, else a byte. `text`
// must not be empty.
uint32_t next_character(std::string_view& text);

// True for characters that change the direction of text, such as U+202E.
bool turns_text(uint32_t code);
// True for controls beyond ASCII (U+009B begins a terminal command), line ends other than '\n', and
// codes that are not characters.
bool is_no_text(uint32_t code);

// "001b"
std::string hex_digits(uint32_t code, size_t digits);

}  // namespace dsckpt
