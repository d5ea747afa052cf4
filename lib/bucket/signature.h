// Signatures of requests: AWS Signature Version 4, as S3 wants it (Amazon S3 API Reference,
// "Authenticating Requests: Using the Authorization Header").
//
// Not libcurl's: secrets would stay in its memory, and 8.13 and later sign a + in a query as a
// space.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bucket/secrets.h"

namespace dsckpt {

// The headers that sign a request for `url`, Host among them, and those of `headers` ("name:
// value", the names in small letters and in order) that begin with x-amz-meta-; its payload is not
// signed. `url` has
// no fragment; path and query are percent_encoded(), the query's parameters in the order of their
// names, each with a =. `now` is in seconds since the epoch.
std::vector<std::string> signed_headers(std::string_view method, std::string_view url,
                                        std::span<const std::string> headers,
                                        const Credentials& credentials, std::string_view region,
                                        int64_t now);

}  // namespace dsckpt
