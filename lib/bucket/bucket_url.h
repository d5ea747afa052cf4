// URLs of folders: s3://BUCKET/PREFIX in object stores, https://HOST/PATH on web servers.
#pragma once

#include <string>
#include <string_view>

namespace dsckpt {

struct BucketUrl {
  std::string scheme;       // "s3", "https", "http"
  std::string bucket;       // or the server, "host" or "host:port"
  std::string prefix = {};  // not encoded, no slash at its ends; empty: all there is

  bool is_web() const { return scheme != "s3"; }
  // Without the prefix: "s3://bucket", "https://host".
  std::string site() const { return scheme + "://" + bucket; }
};

// True if `text` is SCHEME://..., not a local path.
bool is_url(std::string_view text);
// Throws UsageError for another scheme, and for a URL that can name no bucket or no folder. In URLs
// of a web server, names, passwords, queries and fragments are refused too.
BucketUrl parse_bucket_url(const std::string& text);

// `text` with all characters but A-Z a-z 0-9 - . _ ~, and `kept`, as %XX, the form that is signed
// (Signature Version 4, UriEncode).
std::string percent_encoded(std::string_view text, std::string_view kept = {});
// The reverse. With `plus_is_blank` + is a space, as listings of encoding-type=url have it. Throws
// CorruptError for a % without two hexadecimal digits.
std::string percent_decoded(std::string_view text, bool plus_is_blank = true);

}  // namespace dsckpt
