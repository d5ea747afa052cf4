#include "bucket/bucket_url.h"

#include <cctype>

#include "base/text.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

constexpr std::string_view kScheme = "s3://";
constexpr const char* kHexDigits = "0123456789ABCDEF";

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

bool is_plain(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_' || c == '~';
}

}  // namespace

bool is_url(std::string_view text) {
  const size_t end = text.find("://");
  if (end == text.npos || end == 0) return false;
  for (const char c : text.substr(0, end)) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '+' && c != '-' && c != '.') {
      return false;
    }
  }
  return true;
}

BucketUrl parse_bucket_url(const std::string& text) {
  if (!text.starts_with(kScheme)) {
    throw UsageError(printable(text) + ": only s3://BUCKET/PREFIX is read, no other URL")
        .with_hint(
            "a store that speaks S3's protocol is named by --s3-endpoint URL; others can be "
            "mounted (rclone mount), or copied to a disk first");
  }
  const std::string rest = text.substr(kScheme.size());
  const size_t slash = rest.find('/');
  BucketUrl url{rest.substr(0, slash)};
  for (const char c : url.bucket) {
    if (!is_plain(c) || c == '~') url.bucket.clear();
  }
  if (url.bucket.empty() || url.bucket.front() == '.') {
    throw UsageError(printable(text) + ": names no bucket").with_hint("s3://BUCKET/PREFIX");
  }
  if (slash == rest.npos) return url;
  url.prefix = rest.substr(slash + 1);
  while (url.prefix.ends_with('/')) url.prefix.pop_back();
  for (size_t begin = 0; begin < url.prefix.size();) {
    const size_t end = std::min(url.prefix.find('/', begin), url.prefix.size());
    const std::string part = url.prefix.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") {
      throw UsageError(printable(text) + ": has a part '" + part + "', which no folder has");
    }
    begin = end + 1;
  }
  return url;
}

std::string percent_encoded(std::string_view text, std::string_view kept) {
  std::string out;
  for (const char c : text) {
    if (is_plain(c) || kept.find(c) != kept.npos) {
      out += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += '%';
      out += kHexDigits[byte >> 4];
      out += kHexDigits[byte & 15];
    }
  }
  return out;
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i] == '+' ? ' ' : text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hex_value(text[i + 2]) : -1;
    if (high < 0 || low < 0) throw CorruptError({}, "has a % that encodes nothing");
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

}  // namespace dsckpt
