// How a bucket is asked, and what all who ask share.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bucket/credentials.h"
#include "bucket/http_client.h"
#include "bucket/listing.h"
#include "dsckpt/error.h"

namespace dsckpt {

struct BucketAccess {
  std::string name;     // "s3://bucket", "https://host"
  std::string url;      // of the bucket or server, without a slash at its end
  bool is_web = false;  // a web server, not a store that speaks S3's protocol
  std::string region;
  std::shared_ptr<CredentialSource> credentials = {};  // nullptr: requests are not signed
  std::shared_ptr<HttpClient> client = {};
  unsigned requests = 0;  // that may be under way at once
  unsigned buffers = 0;   // of 8 MiB, for what is read ahead
};

// A request of `path`, percent-encoded, with its query, if it has one.
HttpRequest request_of(const BucketAccess& access, const std::string& path);
// Throws what a status that is no success means, with what to do about it. `right`: what one needs
// to be allowed to.
[[noreturn]] void throw_status(const BucketAccess& access, const HttpReply& reply,
                               const std::string& right = "s3:ListBucket and s3:GetObject");
// Of an object that is not what it was.
IoError changed_while_read();

// What `parse` returns. A reply of the wrong form is the server's fault, and no checkpoint's:
// throws IoError for CorruptError.
template <typename Parse>
auto of_right_form(Parse&& parse) {
  try {
    return parse();
  } catch (const CorruptError& error) {
    throw IoError(error.where(), error.message(), 0)
        .with_hint(error.hint().empty() ? "does it speak S3's protocol?" : error.hint());
  }
}

// Of all names of a listing; memory is some three times that.
inline constexpr uint64_t kMostNameBytes = 256'000'000;
// Adds to `bytes` what `name` takes. Throws UnsupportedError when that is more than they may.
void count_name(uint64_t& bytes, std::string_view name);

// All objects whose keys begin with `prefix`; with `beside` none that lie deeper, but as objects of
// no size the folders that these lie in, whose keys end with a slash. Throws IoError,
// UnsupportedError for more than four million or names that are longer in all than kMostNameBytes,
// InterruptedError. `cleans_up`: as of HttpRequest.
std::vector<ListedObject> list_objects(const BucketAccess& access, const std::string& prefix,
                                       bool beside, bool cleans_up = false);

}  // namespace dsckpt
