#include "bucket/bucket_url.h"

#include <algorithm>
#include <cctype>

#include "base/hub_model.h"
#include "base/text.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

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

// Accepts "host", "host:8080" and "[::1]:8080".
bool is_host(std::string_view text) {
  const size_t colon = text.starts_with('[') ? text.find("]:") : text.find(':');
  std::string_view host = text.substr(0, colon);
  if (text.starts_with('[')) {
    if (text.find(']') == text.npos) return false;
    host = text.substr(1, text.find(']') - 1);
    for (const char c : host) {
      if (hex_value(c) < 0 && c != ':' && c != '.') return false;
    }
    if (text.size() > host.size() + 2 && colon == text.npos) return false;
  } else {
    for (const char c : host) {
      if (!is_plain(c) || c == '~') return false;
    }
  }
  if (host.empty() || host.front() == '.' || host.find("..") != host.npos) return false;
  if (colon == text.npos) return true;
  const std::string_view port = text.substr(text.find_last_of(':') + 1);
  return !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == port.npos;
}

void check_site(const BucketUrl& url, const std::string& text) {
  if (url.is_web()) {
    if (url.bucket.find('@') != url.bucket.npos) {
      throw UsageError("a URL with a name or password would be seen by others on this machine")
          .with_hint(
              "~/.netrc gives them to the server: machine HOST login NAME password PASSWORD");
    }
    if (is_host(url.bucket)) return;
    throw UsageError(printable(text) + ": names no server").with_hint("https://HOST/PATH");
  }
  const bool is_name = std::all_of(url.bucket.begin(), url.bucket.end(),
                                   [](char c) { return is_plain(c) && c != '~'; });
  if (is_name && !url.bucket.empty() && url.bucket.front() != '.') return;
  throw UsageError(printable(text) + ": names no bucket").with_hint("s3://BUCKET/PREFIX");
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
  const size_t colon = std::min(text.find("://"), text.size());
  BucketUrl url{.scheme = text.substr(0, colon), .bucket = {}};
  if (url.scheme != "s3" && url.scheme != "https" && url.scheme != "http") {
    throw UsageError(printable(text) + ": only s3://BUCKET/PREFIX and https://HOST/PATH are read")
        .with_hint(
            url.scheme == "hf"
                ? download_hint(printable(text.substr(colon + 3)))
                : "a store that speaks S3's protocol is named by --s3-endpoint URL; others can be "
                  "mounted (rclone mount), or copied to a disk first");
  }
  const std::string rest = text.substr(colon + 3);
  const size_t slash = rest.find('/');
  url.bucket = rest.substr(0, slash);
  check_site(url, text);
  if (slash == rest.npos) return url;
  url.prefix = rest.substr(slash + 1);
  if (url.is_web()) {
    if (url.prefix.find_first_of("?#") != url.prefix.npos) {
      throw UsageError("a URL with a query or a fragment names no folder")
          .with_hint("give the folder's own URL; download the target of a signed link");
    }
    try {
      url.prefix = percent_decoded(url.prefix, false);
    } catch (const CorruptError& error) {
      throw UsageError(printable(text) + ": " + error.message())
          .with_hint("a % itself is written %25 there");
    }
  }
  while (url.prefix.ends_with('/')) url.prefix.pop_back();
  for (size_t begin = 0; begin < url.prefix.size();) {
    const size_t end = std::min(url.prefix.find('/', begin), url.prefix.size());
    const std::string part = url.prefix.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.find('\0') != part.npos) {
      throw UsageError(printable(text) + ": has a part '" + printable(part) +
                       "', which cannot be in a folder's name")
          .with_hint("give the folder's whole name");
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

std::string percent_decoded(std::string_view text, bool plus_is_blank) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i] == '+' && plus_is_blank ? ' ' : text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hex_value(text[i + 2]) : -1;
    if (high < 0 || low < 0) throw CorruptError({}, "has a % without an encoded byte");
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

}  // namespace dsckpt
