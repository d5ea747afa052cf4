// What a bucket has: replies of ListObjectsV2 (Amazon S3 API Reference).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dsckpt {

struct ListedObject {
  std::string key;
  std::string etag = {};  // without quotes; "": the server has none
  uint64_t size = 0;
  int64_t modified = 0;  // nanoseconds since the epoch
};

struct ListingPage {
  std::vector<ListedObject> objects;
  std::vector<std::string> prefixes = {};  // with a delimiter: what lies deeper begins with these
  std::string next = {};                   // the continuation token; "": it was the last page
};

// Throws CorruptError for what is no such reply, and for one that is cut, or says that there is
// more but not where.
ListingPage parse_listing(std::string_view xml);

// Code and message of an error's body, "AccessDenied: Access Denied"; "" if it has none.
std::string error_in(std::string_view xml);

}  // namespace dsckpt
