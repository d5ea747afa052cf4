// Access to a bucket: the settings and the client that all its users share.
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

// A request for `path`, which is percent-encoded and may have a query.
HttpRequest request_of(const BucketAccess& access, const std::string& path);
// Throws the error for a status that is not a success, with a next step for the user. `right` names
// the permission that is needed.
[[noreturn]] void throw_status(const BucketAccess& access, const HttpReply& reply,
                               const std::string& right = "s3:ListBucket and s3:GetObject");
// The error for an object that has changed.
IoError changed_while_read();

// Returns the result of `parse`. A malformed reply is the server's fault, not a checkpoint's:
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

// The most bytes of all names of a listing; memory is about three times that.
inline constexpr uint64_t kMostNameBytes = 256'000'000;
// Adds the size of `name` to `bytes`. Throws UnsupportedError beyond kMostNameBytes.
void count_name(uint64_t& bytes, std::string_view name);

// All objects whose keys begin with `prefix`. With `beside`, none that lie deeper; their folders
// are listed as empty objects whose keys end with a slash. Throws IoError, InterruptedError. Throws
// UnsupportedError for more than four million objects or kMostNameBytes of names. `cleans_up` is as
// in HttpRequest.
std::vector<ListedObject> list_objects(const BucketAccess& access, const std::string& prefix,
                                       bool beside, bool cleans_up = false);

}  // namespace dsckpt
