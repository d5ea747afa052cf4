// Text that comes from files, character by character, so that nothing in it acts on whoever reads
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dsckpt {

// What next_character() gives for a byte that is no UTF-8.
inline constexpr uint32_t kInvalidCharacter = 0xfffd;

// Takes a character off `text`, which is UTF-8 or not and not empty: a whole one, or a byte.
uint32_t next_character(std::string_view& text);

// Whether a character turns the direction of text, such as U+202E.
bool turns_text(uint32_t code);
// Controls beyond ASCII (U+009B begins a terminal's commands), line ends that are no '\n', and what
// is no character.
bool is_no_text(uint32_t code);

// "001b"
std::string hex_digits(uint32_t code, size_t digits);

}  // namespace dsckpt
