// Folders of web servers, read from their index pages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bucket/bucket_access.h"
#include "bucket/listing.h"

namespace dsckpt {

struct WebEntry {
  std::string name;  // not encoded, without a slash
  bool is_folder = false;

  friend bool operator==(const WebEntry&, const WebEntry&) = default;
};

// The entries of the folder /PATH ("a/b", not encoded; "" is the root) in its index. An index is
// HTML with links to the entries (nginx's, Apache's, Caddy's, Python's http.server), or JSON. JSON
// is a list of objects with `name`, and `type` "directory" or `is_dir` (nginx's autoindex_format,
// Caddy). Names are unique, in their order. Throws CorruptError for JSON of another form.
std::vector<WebEntry> parse_web_index(std::string_view text, const std::string& path);

// All files below /PATH of the server, in their order, with the sizes, times and ETags that it
// gives. With `beside`, none that lie deeper; their folders are listed as empty objects whose keys
// end with a slash. If the path is a file, only that file; nothing if there is nothing. Throws
// InterruptedError, and IoError for a server that answers with neither. Throws UnsupportedError for
// more than a million files (10,000 with `beside`) or folders 32 deep.
std::vector<ListedObject> list_web_folder(const BucketAccess& access, const std::string& path,
                                          bool beside);

}  // namespace dsckpt
