#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bucket/signature.h"

namespace dsckpt {
namespace {

constexpr int64_t kNow = 1'795'609'805;  // 2026-11-25 12:30:05 UTC

std::string authorization(const std::string& url, const std::string& token,
                          const std::string& region) {
  Credentials credentials;
  credentials.key = "ACCESSKEY123";
  credentials.secret = "SECRETKEY123456";
  credentials.token = token;
  const std::string front = "Authorization: ";
  for (const std::string& header : signed_headers("GET", url, {}, credentials, region, kNow)) {
    if (header.starts_with(front)) return header.substr(front.size());
  }
  return "";
}

// The expected results are botocore's: S3SigV4Auth of these requests, with a payload() of
// UNSIGNED-PAYLOAD.

TEST(BucketSignature, OfAnObjectWithAnOddKey) {
  EXPECT_EQ(authorization("https://models.s3.eu-central-1.amazonaws.com/run7/a%20b%2Bc%26d/"
                          "zero_pp_rank_0.pt",
                          "", "eu-central-1"),
            "AWS4-HMAC-SHA256 Credential=ACCESSKEY123/20261125/eu-central-1/s3/aws4_request, "
            "SignedHeaders=host;x-amz-content-sha256;x-amz-date, "
            "Signature=e6a6c1b5409740bf44e9903cce1a31282cfbdf2e1c41b6c3a7de638be681bfdc");
}

TEST(BucketSignature, OfAListingWithAPlusInItsQueryAndASessionToken) {
  EXPECT_EQ(authorization("http://127.0.0.1:9000/models/?continuation-token=a%2Bb%2Fc%3D"
                          "&encoding-type=url&list-type=2&max-keys=1000&prefix=",
                          "TOKEN/+=", "us-east-1"),
            "AWS4-HMAC-SHA256 Credential=ACCESSKEY123/20261125/us-east-1/s3/aws4_request, "
            "SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token, "
            "Signature=0e13d9b6f497566546b80a83473e55f61f9c79af4fff5dd09a9d507a229bab2e");
}

}  // namespace
}  // namespace dsckpt
