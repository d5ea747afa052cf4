// Replaces the other files of this folder in builds without libcurl.
#include "bucket/buckets.h"
#include "dsckpt/error.h"

namespace dsckpt {

struct Buckets::Impl {};

Buckets::Buckets() = default;
Buckets::~Buckets() = default;

std::filesystem::path Buckets::place_of(const std::string& url, BucketUse) {
  throw UsageError(url + ": this build reads no URLs")
      .with_hint(
          "the packages do, and a build with -DDSCKPT_S3=ON (`--version` says s3); or mount it "
          "(rclone mount)");
}

bool Buckets::is_empty() const {
  return true;
}

bool Buckets::has_stores() const {
  return false;
}

void Buckets::open(const BucketOptions&, const std::function<const char*(const char*)>&,
                   const std::function<bool()>&) {}

HttpTraffic Buckets::traffic() const {
  return {};
}

}  // namespace dsckpt
