// Buckets: s3:// and https:// URLs as folders here (io/far_files.h), for as long as it lives.
//
// The folders have stand-ins of all objects below the prefix, and of the files beside it, as they
// were listed. What these hold is read in ranges, as it is needed. Outputs in the folders go to the
// bucket (io/far_store.h); of web servers there are none.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "bucket/http_client.h"

namespace dsckpt {

struct BucketOptions {
  std::string endpoint =
      {};                   // "": AWS_ENDPOINT_URL_S3's, AWS_ENDPOINT_URL's, the profile's, or AWS
  std::string region = {};  // "": AWS_REGION's, AWS_DEFAULT_REGION's, the profile's, us-east-1
  // endpoint/BUCKET instead of BUCKET.endpoint; unless set: where there is an endpoint.
  std::optional<bool> path_style = {};
  bool is_unsigned = false;
  unsigned requests = 32;   // under way at once
  uint64_t max_memory = 0;  // bytes of the whole process; requests take a quarter at most; 0: any
};

// What lies beside the URL of an input is listed, too.
enum class BucketUse : uint8_t { input, output };

// One thread. In a build that cannot read them place_of() throws UsageError that says which can.
class Buckets {
 public:
  Buckets();
  // Removes the folders. A process that ends in any other way leaves that to a child of its own.
  ~Buckets();
  Buckets(const Buckets&) = delete;
  Buckets& operator=(const Buckets&) = delete;

  // The folder, or file, that `url` is going to be. Throws what parse_bucket_url() throws, IoError,
  // UsageError for an output on a web server.
  std::filesystem::path place_of(const std::string& url, BucketUse use = BucketUse::input);
  bool is_empty() const;
  bool has_stores() const;  // not only web servers

  // Lists them, and has them there. `variables` is as getenv(3), `cancelled` is asked by any thread
  // that waits for the network, as long as this lives. Nothing is there of a URL that names
  // nothing. Throws IoError, CorruptError for a web server's index, UnsupportedError for keys that
  // no file can have, UsageError for an endpoint or profile, InterruptedError.
  void open(const BucketOptions& options, const std::function<const char*(const char*)>& variables,
            const std::function<bool()>& cancelled);
  HttpTraffic traffic() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsckpt
