#include "bucket/secrets.h"

#include <string.h>

#include <algorithm>
#include <vector>

#include "base/text.h"

namespace dsckpt {
namespace {

// Longer texts are cut: messages show at most so much of them.
constexpr size_t kMostLooked = 8192;
constexpr size_t kTelling = 8;

std::string small_letters(std::string_view text) {
  std::string small(text);
  for (char& c : small) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + ('a' - 'A'));
  }
  return small;
}

}  // namespace

void wipe(std::string& text) {
  ::explicit_bzero(text.data(), text.size());
}

Credentials::~Credentials() {
  wipe(key);
  wipe(secret);
  wipe(token);
}

std::string shown(std::string_view text, std::span<const std::string_view> secrets, size_t most) {
  text = text.substr(0, kMostLooked);
  const std::string small = small_letters(text);
  std::vector<bool> is_secret(text.size());
  for (const std::string_view secret : secrets) {
    std::string known = small_letters(secret);
    const size_t telling = std::min(kTelling, known.size());
    for (size_t i = 0; telling > 0 && i + telling <= small.size(); ++i) {
      if (known.find(std::string_view(small).substr(i, telling)) == known.npos) continue;
      std::fill_n(is_secret.begin() + static_cast<std::ptrdiff_t>(i), telling, true);
    }
    wipe(known);
  }
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!is_secret[i]) {
      out += text[i];
    } else if (i == 0 || !is_secret[i - 1]) {
      out += "...";
    }
  }
  return printable(out.substr(0, most));
}

}  // namespace dsckpt
