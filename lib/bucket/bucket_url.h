// s3://BUCKET/PREFIX: what object stores call a folder.
#pragma once

#include <string>
#include <string_view>

namespace dsckpt {

struct BucketUrl {
  std::string bucket;
  std::string prefix = {};  // no slash at its ends; empty: all of the bucket
};

// Whether `text` is SCHEME://..., not a path here.
bool is_url(std::string_view text);
// Throws UsageError for another scheme than s3, and for what can name no bucket or no folder.
BucketUrl parse_bucket_url(const std::string& text);

// `text` with all but A-Z a-z 0-9 - . _ ~, and `kept`, as %XX: what signatures are made of
// (Signature Version 4, UriEncode).
std::string percent_encoded(std::string_view text, std::string_view kept = {});
// The reverse, where + is a space, as listings of encoding-type=url have it. Throws CorruptError
// for a % without two hexadecimal digits.
std::string percent_decoded(std::string_view text);

}  // namespace dsckpt
