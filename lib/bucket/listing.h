// The contents of a bucket: replies of ListObjectsV2 (Amazon S3 API Reference).
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

// Throws CorruptError for anything but such a reply, and for one that is cut, or has no token for
// its continuation.
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

// The upload id or ETag in a reply of CreateMultipartUpload or CompleteMultipartUpload; "" if it is
// none. Servers disagree on the name of the outermost element. The ETag has no quotes.
std::string upload_id_in(std::string_view xml);
std::string etag_in(std::string_view xml);
// `text`, escaped for XML.
std::string xml_text(std::string_view text);

// Code and message of an error's body, "AccessDenied: Access Denied"; "" if it has none. They are
// unfiltered: use shown() (secrets.h) to show them.
std::string error_in(std::string_view xml);

}  // namespace dsckpt
