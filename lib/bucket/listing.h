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

struct ListedUpload {
  std::string key;
  std::string id;
  int64_t begun = 0;  // nanoseconds since the epoch
};

// A reply of ListMultipartUploads.
struct UploadsPage {
  std::vector<ListedUpload> uploads = {};
  bool is_cut = false;  // there are more, behind these:
  std::string next_key = {};
  std::string next_upload = {};
};

// Throws as parse_listing().
UploadsPage parse_uploads(std::string_view xml);

// Of replies of CreateMultipartUpload and CompleteMultipartUpload; "" if it is none. What the
// outermost element is called not all servers agree on. The ETag has no quotes.
std::string upload_id_in(std::string_view xml);
std::string etag_in(std::string_view xml);
// `text` as it stands in XML.
std::string xml_text(std::string_view text);

// Code and message of an error's body, "AccessDenied: Access Denied"; "" if it has none. As they
// are: what is shown of them is shown() (secrets.h).
std::string error_in(std::string_view xml);

}  // namespace dsckpt
