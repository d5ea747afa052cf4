// Words in messages, and numbers for people to read.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsckpt {

// "1 tensor", "2 tensors"; "1 entry", "2 entries". All texts write counts of things with it.
inline std::string counted(std::integral auto count, const std::string& noun,
                           const std::string& plural) {
  return std::to_string(count) + " " + (count == 1 ? noun : plural);
}
inline std::string counted(std::integral auto count, const std::string& noun) {
  return counted(count, noun, noun + "s");
}
// The same with thousands separators: "1,234 tensors".
std::string grouped_count(uint64_t count, const std::string& noun);

// The most lines of a list: more help nobody.
inline constexpr size_t kMaxListed = 1024;
// The lines, each on a line of its own.
inline std::string listed(const std::vector<std::string>& lines) {
  std::string text;
  for (size_t i = 0; i < std::min(lines.size(), kMaxListed); ++i) text += "\n  " + lines[i];
  return lines.size() > kMaxListed ? text + "\n  ..." : text;
}

// "'a', 'b' and 3 more"
std::string some_of(const std::vector<std::string>& names);

enum class Newlines : uint8_t { escape, keep };

// `text` for a terminal: it stays on its line and sends no commands. Control characters, bytes that
// are not UTF-8, and characters that change the direction of text are escaped: "\\n", "\\x1b",
// "\\u{202e}".
std::string printable(const std::string& text, Newlines newlines = Newlines::escape);
// `text` as one word of a POSIX shell, quoted if needed: "'my run/ckpt'".
std::string shell_word(const std::string& text);
// `text` without blanks, tabs and line ends around it.
std::string_view without_blanks(std::string_view text);
// True for one or more decimal digits, and nothing else.
inline bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}
// The decimal number that the whole of `text` is, in any locale. (libc++ has no std::from_chars for
// it.)
std::optional<double> real_of(std::string_view text);
// "1,234,567"
std::string grouped(uint64_t value);
// "1.5 GB", in powers of 1000, as for disks and shard sizes.
std::string human_bytes(uint64_t bytes);
// "83.4 %" for 0.834.
std::string human_percent(double part);
// "0.53 s"
std::string human_seconds(double seconds);

// "5GB", "500mb": a number, perhaps with a decimal point, and a unit. KB, MB, GB and TB are powers
// of 1000; KiB, MiB, GiB and TiB are powers of 1024. The result is at least one byte. Source:
// huggingface_hub parse_size_to_int. Throws UsageError: "is not a `what`".
uint64_t parse_size(std::string_view text, const std::string& what);

}  // namespace dsckpt
