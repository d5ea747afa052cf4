// s3://BUCKET/PREFIX: what object stores call a folder; https://HOST/PATH: what web servers do.
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

// Whether `text` is SCHEME://..., not a path here.
bool is_url(std::string_view text);
// Throws UsageError for another scheme than these, and for what can name no bucket or no folder; of
// a web server's also for names, passwords, queries and fragments.
BucketUrl parse_bucket_url(const std::string& text);

// `text` with all but A-Z a-z 0-9 - . _ ~, and `kept`, as %XX: what signatures are made of
// (Signature Version 4, UriEncode).
std::string percent_encoded(std::string_view text, std::string_view kept = {});
// The reverse. With `plus_is_blank` + is a space, as listings of encoding-type=url have it. Throws
// CorruptError for a % without two hexadecimal digits.
std::string percent_decoded(std::string_view text, bool plus_is_blank = true);

}  // namespace dsckpt
