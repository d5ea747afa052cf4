// Signatures of requests: AWS Signature Version 4 for S3 (Amazon S3 API Reference, "Authenticating
// Requests: Using the Authorization Header").
//
// libcurl's own signatures are not used: secrets would stay in its memory, and 8.13 and later sign
// a + in a query as a space.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bucket/secrets.h"

namespace dsckpt {

// The headers that sign a request for `url`. They include Host, and those of `headers` ("name:
// value", with small letters and sorted) that begin with x-amz-meta-. The payload is not signed.
// `url` has no fragment, and its path and query are percent_encoded(). The query's parameters are
// sorted by name, each with a =. `now` is in seconds since the epoch.
std::vector<std::string> signed_headers(std::string_view method, std::string_view url,
                                        std::span<const std::string> headers,
                                        const Credentials& credentials, std::string_view region,
                                        int64_t now);

}  // namespace dsckpt
