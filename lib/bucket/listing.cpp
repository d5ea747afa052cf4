#include "bucket/listing.h"

#include <time.h>

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <pugixml.hpp>

#include "base/text.h"
#include "bucket/bucket_url.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

constexpr size_t kMostKeyBytes = 8192;  // S3 allows 1024

// Parses "2026-11-25T12:30:00.250Z". Returns 0 for anything else, and for dates outside 1678 to
// 2262.
int64_t nanoseconds_of(const char* text) {
  tm parts{};
  const char* rest = ::strptime(text, "%Y-%m-%dT%H:%M:%S", &parts);
  if (rest == nullptr) return 0;
  int64_t fraction = 0;
  if (*rest == '.') {
    int64_t unit = 100'000'000;
    for (++rest; *rest >= '0' && *rest <= '9'; ++rest, unit /= 10) fraction += (*rest - '0') * unit;
  }
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t seconds = ::timegm(&parts);
  if (std::abs(seconds) >= INT64_MAX / kSecond) return 0;
  return seconds * kSecond + fraction;
}

}  // namespace

ListingPage parse_listing(std::string_view xml) {
  pugi::xml_document document;
  const pugi::xml_parse_result parsed = document.load_buffer(xml.data(), xml.size());
  if (!parsed) {
    throw CorruptError({.offset = static_cast<uint64_t>(parsed.offset)},
                       std::string("the listing is not XML: ") + parsed.description());
  }
  const pugi::xml_node result = document.child("ListBucketResult");
  if (!result) {
    throw CorruptError({}, "the server's answer is not a bucket listing")
        .with_hint("does it speak S3's protocol (ListObjectsV2)?");
  }
  const bool is_encoded = std::strcmp(result.child("EncodingType").text().get(), "url") == 0;
  ListingPage page;
  for (const pugi::xml_node& entry : result.children("Contents")) {
    ListedObject object;
    const char* const key = entry.child("Key").text().get();
    object.key = is_encoded ? percent_decoded(key) : key;
    object.etag = entry.child("ETag").text().get();
    std::erase(object.etag, '"');
    const std::string_view size = entry.child("Size").text().get();
    const auto [end, failed] = std::from_chars(size.data(), size.data() + size.size(), object.size);
    if (object.key.empty() || object.key.size() > kMostKeyBytes || failed != std::errc() ||
        end != size.data() + size.size() || object.size > INT64_MAX) {
      throw CorruptError({}, "the listing has an object without a key or a size");
    }
    object.modified = nanoseconds_of(entry.child("LastModified").text().get());
    page.objects.push_back(std::move(object));
  }
  for (const pugi::xml_node& entry : result.children("CommonPrefixes")) {
    const char* const prefix = entry.child("Prefix").text().get();
    page.prefixes.push_back(is_encoded ? percent_decoded(prefix) : prefix);
    if (page.prefixes.back().size() > kMostKeyBytes) {
      throw CorruptError({}, "the listing has a folder whose name is too long");
    }
  }
  if (std::strcmp(result.child("IsTruncated").text().get(), "true") == 0) {
    page.next = result.child("NextContinuationToken").text().get();
    if (page.next.empty()) {
      throw CorruptError({}, "the listing is cut off without a token for the rest");
    }
  }
  return page;
}

UploadsPage parse_uploads(std::string_view xml) {
  pugi::xml_document document;
  const pugi::xml_node result = document.load_buffer(xml.data(), xml.size())
                                    ? document.child("ListMultipartUploadsResult")
                                    : pugi::xml_node();
  if (!result) {
    throw CorruptError({}, "the server's answer is not a list of uploads")
        .with_hint("does it speak S3's protocol (ListMultipartUploads)?");
  }
  const bool is_encoded = std::strcmp(result.child("EncodingType").text().get(), "url") == 0;
  const auto key_in = [&](const pugi::xml_node& node, const char* name) {
    const char* const key = node.child(name).text().get();
    return is_encoded ? percent_decoded(key) : std::string(key);
  };
  UploadsPage page;
  for (const pugi::xml_node& entry : result.children("Upload")) {
    ListedUpload upload{.key = key_in(entry, "Key"), .id = entry.child("UploadId").text().get()};
    if (upload.key.empty() || upload.id.empty()) {
      throw CorruptError({}, "the list of uploads has one without a key or an id");
    }
    upload.begun = nanoseconds_of(entry.child("Initiated").text().get());
    page.uploads.push_back(std::move(upload));
  }
  page.is_cut = std::strcmp(result.child("IsTruncated").text().get(), "true") == 0;
  page.next_key = key_in(result, "NextKeyMarker");
  page.next_upload = result.child("NextUploadIdMarker").text().get();
  return page;
}

std::string upload_id_in(std::string_view xml) {
  pugi::xml_document document;
  if (!document.load_buffer(xml.data(), xml.size())) return "";
  return document.document_element().child("UploadId").text().get();
}

std::string etag_in(std::string_view xml) {
  pugi::xml_document document;
  if (!document.load_buffer(xml.data(), xml.size())) return "";
  std::string etag = document.document_element().child("ETag").text().get();
  std::erase(etag, '"');
  return etag;
}

std::string xml_text(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string error_in(std::string_view xml) {
  pugi::xml_document document;
  if (!document.load_buffer(xml.data(), xml.size())) return "";
  const pugi::xml_node of_tokens = document.child("ErrorResponse");  // AWS Security Token Service
  const pugi::xml_node error = (of_tokens ? of_tokens : document).child("Error");
  std::string text = error.child("Code").text().get();
  const std::string message = error.child("Message").text().get();
  if (!message.empty()) text += (text.empty() ? "" : ": ") + message;
  return text;
}

}  // namespace dsckpt
