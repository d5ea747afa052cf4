// Buckets: makes s3:// and https:// URLs into local folders (io/far_files.h), as long as it lives.
//
// The folders have stand-ins for all objects below the prefix, and for the files beside it, as they
// were listed. Contents are read in ranges when they are needed. Outputs in the folders go to the
// bucket (io/far_store.h); web servers take none.
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
  bool lists = true;        // false: without stand-ins; others have listed what is read
};

// Files beside a URL are listed too, unless it is an output's. `either`: other arguments decide.
enum class BucketUse : uint8_t { input, output, either };

// One thread. In a build without support for URLs, place_of() throws UsageError that names the
// builds that have it.
class Buckets {
 public:
  Buckets();
  // Removes the folders. If the process ends in any other way, a child process removes them.
  ~Buckets();
  Buckets(const Buckets&) = delete;
  Buckets& operator=(const Buckets&) = delete;

  // The folder, or file, that `url` will become. Throws as parse_bucket_url(), IoError, and
  // UsageError for an output on a web server.
  std::filesystem::path place_of(const std::string& url, BucketUse use = BucketUse::input);
  bool is_empty() const;
  bool has_stores() const;  // not only web servers

  // Lists the buckets and makes their folders. `variables` is as getenv(3). Any thread that waits
  // for the network calls `cancelled`, as long as this lives. A URL that names nothing gets
  // nothing. Throws IoError, InterruptedError, and CorruptError for a web server's index. Throws
  // UnsupportedError for keys that no file can have, UsageError for an endpoint or profile.
  void open(const BucketOptions& options, const std::function<const char*(const char*)>& variables,
            const std::function<bool()>& cancelled);
  HttpTraffic traffic() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsckpt
