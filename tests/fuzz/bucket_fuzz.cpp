// Replies of an object store or web server, and the files with a user's keys, each by all of its
// readers. They are a listing, an index, an error, a key, the name of a folder, and the files that
// the AWS command line keeps.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "bucket/bucket_url.h"
#include "bucket/credentials.h"
#include "bucket/listing.h"
#include "bucket/web_folder.h"
#include "dsckpt/error.h"
#include "fuzz/memory_file.h"
#include "fuzz/refuse_as.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsckpt;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto refuse_or = [](auto&& read) {
    refuse_as<ErrorKind::usage, ErrorKind::corrupt, ErrorKind::io>(read);
  };
  refuse_or([&] {
    const ListingPage page = parse_listing(text);
    for (const ListedObject& object : page.objects) {
      if (object.key.empty()) std::abort();
    }
  });
  static_cast<void>(error_in(text));
  refuse_or([&] {
    const std::string plain = percent_decoded(text);
    if (percent_decoded(percent_encoded(plain)) != plain) std::abort();
  });
  refuse_or([&] {
    const BucketUrl url = parse_bucket_url("s3://" + text);
    if (url.bucket.empty() || url.prefix.starts_with('/') || url.prefix.ends_with('/')) {
      std::abort();
    }
  });
  refuse_or([&] {
    const BucketUrl url = parse_bucket_url("https://" + text);
    if (url.bucket.empty() || url.prefix.starts_with('/') || url.prefix.ends_with('/')) {
      std::abort();
    }
  });
  refuse_or([&] {
    for (const WebEntry& entry : parse_web_index(text, "a/b")) {
      if (entry.name.empty() || entry.name == "." || entry.name == ".." ||
          entry.name.find('/') != entry.name.npos) {
        std::abort();
      }
    }
  });
  static_cast<void>(upload_id_in(text));
  static_cast<void>(etag_in(text));
  refuse_or([&] { static_cast<void>(parse_uploads(text)); });
  const MemoryFile memory(data, size);
  const std::string path = memory.path();
  refuse_or([&] {
    static_cast<void>(read_shared_settings([&](const char* name) -> const char* {
      const std::string_view wanted = name;
      const bool is_file = wanted == "AWS_SHARED_CREDENTIALS_FILE" || wanted == "AWS_CONFIG_FILE";
      return is_file ? path.c_str() : nullptr;
    }));
  });
  return 0;
}
