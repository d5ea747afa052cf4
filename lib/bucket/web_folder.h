// Folders of web servers: what their index pages link to.
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

// What lies in the folder /PATH ("a/b", not encoded; "": all there is) by its index: the links of
// HTML that lead to what is in it (nginx's, Apache's, Caddy's, Python's http.server), or JSON: a
// list of objects with `name`, and `type` "directory" or `is_dir` (nginx's autoindex_format,
// Caddy). Names are unique, in their order. Throws CorruptError for JSON of another form.
std::vector<WebEntry> parse_web_index(std::string_view text, const std::string& path);

// All files below /PATH of the server, with the sizes, times and ETags that it gives for each, in
// their order; with `beside` none that lie deeper, but as objects of no size the folders that these
// lie in, whose keys end with a slash. If it is no folder there, but a file: that one. Nothing if
// there is nothing. Throws IoError for a server that answers with neither, UnsupportedError for
// more than a million files (10,000 with `beside`) or folders 32 deep, InterruptedError.
std::vector<ListedObject> list_web_folder(const BucketAccess& access, const std::string& path,
                                          bool beside);

}  // namespace dsckpt
