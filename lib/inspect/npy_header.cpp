#include "inspect/npy_header.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace dsckpt {
namespace {

using namespace std::literals;

// NumPy's own limit for untrusted files (_MAX_HEADER_SIZE) is a seventh of this.
constexpr uint64_t kMaxHeader = uint64_t{64} << 10;
constexpr int kMaxNesting = 16;

// Reads repr() of NumPy's dict. Python reads it as a literal, so the same types can be written in
// many other ways, but NumPy does not write those.
class HeaderText {
 public:
  explicit HeaderText(std::string_view text) : text_(text) {}

  // {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
  std::optional<uint64_t> data() {
    if (!take("{'descr': ")) return std::nullopt;
    const auto item = type(0);
    if (!item || !take(", 'fortran_order': ") || !(take("False") || take("True")) ||
        !take(", 'shape': ")) {
      return std::nullopt;
    }
    auto count = shape();
    if (!count || !take(", }") || text_.find_first_not_of(" \n") != text_.npos) return std::nullopt;
    uint64_t size = 0;
    if (__builtin_mul_overflow(*count, *item, &size)) return std::nullopt;
    return size;
  }

 private:
  bool take(std::string_view word) {
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }

  std::optional<uint64_t> number() {
    const size_t end = std::min(text_.find_first_not_of("0123456789"), text_.size());
    if (end == 0 || end > 18) return std::nullopt;
    uint64_t value = 0;
    for (const char digit : text_.substr(0, end)) {
      value = value * 10 + static_cast<uint64_t>(digit - '0');
    }
    text_.remove_prefix(end);
    return value;
  }

  // Reads a text in single quotes without escapes.
  std::optional<std::string_view> quoted() {
    if (!take("'")) return std::nullopt;
    const size_t end = text_.find_first_of("'\\\n");
    if (end == text_.npos || text_[end] != '\'') return std::nullopt;
    const std::string_view inside = text_.substr(0, end);
    text_.remove_prefix(end + 1);
    return inside;
  }

  // Returns the number of elements: (), (3,), (3, 4).
  std::optional<uint64_t> shape() {
    if (!take("(")) return std::nullopt;
    uint64_t count = 1;
    for (int dimensions = 0; !take(")"); ++dimensions) {
      if (dimensions > 0 && !take(", ")) return std::nullopt;
      const auto size = number();
      take("L");  // Python 2
      if (!size || __builtin_mul_overflow(count, *size, &count)) return std::nullopt;
      if (dimensions == 0 && take(",)")) return count;
    }
    return count;
  }

  // Returns the bytes of an element: '<f4', or [('a', '<i4'), ('b', '<f8', (2,))].
  std::optional<uint64_t> type(int depth) {
    if (depth > kMaxNesting) return std::nullopt;
    if (!take("[")) return simple_type();
    uint64_t size = 0;
    for (bool is_first = true; !take("]"); is_first = false) {
      if (!is_first && !take(", ")) return std::nullopt;
      if (!take("(") || !field_name() || !take(", ")) return std::nullopt;
      const auto item = type(depth + 1);
      const auto count = take(", ") ? shape() : std::optional<uint64_t>(1);
      uint64_t bytes = 0;
      if (!item || !count || !take(")") || __builtin_mul_overflow(*item, *count, &bytes) ||
          __builtin_add_overflow(size, bytes, &size)) {
        return std::nullopt;
      }
    }
    return size;
  }

  // 'a', or with a title ('t', 'a').
  bool field_name() {
    if (!take("(")) return quoted().has_value();
    return quoted() && take(", ") && quoted() && take(")");
  }

  std::optional<uint64_t> simple_type() {
    const auto code = quoted();
    if (!code || code->size() < 3) return std::nullopt;
    if ("<>|="sv.find((*code)[0]) == std::string_view::npos) return std::nullopt;
    if ("?biufcSUVmM"sv.find((*code)[1]) == std::string_view::npos) return std::nullopt;
    HeaderText rest(code->substr(2));
    const auto size = rest.number();
    if (!size) return std::nullopt;
    const bool has_unit = rest.text_.starts_with('[') && rest.text_.ends_with(']');
    if (!rest.text_.empty() && !(has_unit && "mM"sv.find((*code)[1]) != std::string_view::npos)) {
      return std::nullopt;
    }
    return (*code)[1] == 'U' ? 4 * *size : *size;
  }

  std::string_view text_;
};

}  // namespace

NpyHeader npy_header(const ByteSource& source) {
  const std::vector<std::byte> start = source.read(0, 12);
  if (start.size() < 12) return {source.size(), std::nullopt};
  const bool is_long = start[6] > std::byte{1};
  const uint64_t length =
      is_long ? load_le<uint32_t>(start.data() + 8) : load_le<uint16_t>(start.data() + 8);
  const uint64_t begin = is_long ? 12 : 10;
  NpyHeader header{begin + length, std::nullopt};
  if (length > kMaxHeader) return header;
  const std::vector<std::byte> text = source.read(begin, length);
  if (text.size() == length) header.data = HeaderText(as_text(text)).data();
  return header;
}

}  // namespace dsckpt
