#include "bucket/object_writer.h"

#include <nettle/base64.h>
#include <nettle/md5.h>

#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "base/random.h"
#include "base/text.h"
#include "bucket/bucket_url.h"
#include "bucket/listing.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

constexpr const char* kRunHeader = "x-amz-meta-dsckpt-run: ";
constexpr const char* kWriteRights =
    "s3:PutObject, s3:DeleteObject, s3:ListBucket, s3:AbortMultipartUpload and "
    "s3:ListBucketMultipartUploads";
constexpr unsigned kMostParts = 10'000;
// "Processing of a CompleteMultipartUpload request could take several minutes to finalize". The
// server sends white space meanwhile (Amazon S3 API Reference, CompleteMultipartUpload).
constexpr long kCompletionSeconds = 600;
constexpr size_t kMostUploads = 4'000'000;

// Returns a name for a run, unique in practice.
std::string random_name() {
  std::string name;
  for (int i = 0; i < 2; ++i) {
    uint64_t value = random_number();
    for (int digit = 0; digit < 16; ++digit, value >>= 4U) name += "0123456789abcdef"[value & 15U];
  }
  return name;
}

std::string md5_header(std::span<const std::byte> bytes) {
  md5_ctx context;
  ::md5_init(&context);
  ::md5_update(&context, bytes.size(), reinterpret_cast<const uint8_t*>(bytes.data()));
  std::array<uint8_t, MD5_DIGEST_SIZE> digest{};
  ::md5_digest(&context, digest.size(), digest.data());
  std::array<char, BASE64_ENCODE_RAW_LENGTH(MD5_DIGEST_SIZE)> text{};
  ::base64_encode_raw(text.data(), digest.size(), digest.data());
  return "content-md5: " + std::string(text.data(), text.size());
}

std::span<const std::byte> body_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

void add_condition(HttpRequest& request, const std::optional<std::string>& before) {
  if (!before) return;
  request.headers.push_back(before->empty() ? "if-none-match: *" : "if-match: \"" + *before + "\"");
}

}  // namespace

ObjectWriter::ObjectWriter(BucketAccess access, std::function<void(const FarObject&)> stand_in)
    : access_(std::move(access)), stand_in_(std::move(stand_in)), run_(random_name()) {}

HttpRequest ObjectWriter::request(const char* method, const std::string& path,
                                  const std::string& query) const {
  HttpRequest request =
      request_of(access_, "/" + percent_encoded(path, "/") + (query.empty() ? "" : "?" + query));
  request.method = method;
  request.cleans_up = cleans_up_;
  return request;
}

std::vector<FarObject> ObjectWriter::list(const std::string& front) {
  return in_context({.file = access_.name + "/" + front}, [&] {
    std::vector<FarObject> found;
    for (ListedObject& object : list_objects(access_, front, false, cleans_up_)) {
      found.push_back(
          {std::move(object.key), std::move(object.etag), object.size, object.modified});
    }
    return found;
  });
}

std::optional<std::string> ObjectWriter::find_etag(const std::string& path) {
  return in_context({.file = access_.name + "/" + path}, [&]() -> std::optional<std::string> {
    HttpReply reply = access_.client->send(request("HEAD", path));
    if (reply.status == 404) return std::nullopt;
    if (reply.status != 200) throw_status(access_, reply);
    return std::move(reply.etag);
  });
}

std::optional<std::string> ObjectWriter::find_own(const std::string& path) {
  return in_context({.file = access_.name + "/" + path}, [&]() -> std::optional<std::string> {
    HttpReply reply = access_.client->send(request("HEAD", path));
    if (reply.status != 200 && reply.status != 404) throw_status(access_, reply);
    if (reply.status == 200 && reply.etag.empty()) {
      throw IoError({}, "the server does not identify the object", 0);
    }
    if (reply.status == 404 || reply.run != run_) return std::nullopt;
    return std::move(reply.etag);
  });
}

std::string ObjectWriter::read(const std::string& path, size_t most) {
  return in_context({.file = access_.name + "/" + path}, [&] {
    HttpRequest asked = request("GET", path);
    asked.most = most;
    HttpReply reply = access_.client->send(asked);
    if (reply.status != 200) throw_status(access_, reply);
    return std::move(reply.text);
  });
}

std::optional<std::string> ObjectWriter::ours(const std::string& path) const {
  const HttpReply reply = access_.client->send(request("HEAD", path));
  if (reply.status != 200 || reply.run != run_) return std::nullopt;
  return reply.etag;
}

FarPublished ObjectWriter::publish(const std::string& path, HttpRequest request,
                                   const std::optional<std::string>& before) const {
  add_condition(request, before);
  request.is_awaited = true;
  HttpReply reply;
  try {
    reply = access_.client->send(request);
  } catch (const IoError&) {
    // The request may have succeeded nevertheless.
    if (const auto etag = ours(path)) return {FarPublished::What::done, *etag};
    throw;
  }
  const bool is_success = reply.status == 200 && error_in(reply.text).empty();
  if (is_success) {
    std::string etag = request.fails_in_text ? etag_in(reply.text) : reply.etag;
    if (!etag.empty()) {
      if (request.fails_in_text) etag = etag_of_whole(path, std::move(etag));
      return {FarPublished::What::done, std::move(etag)};
    }
  }
  // If a request was repeated, its first attempt may have succeeded.
  if (const auto etag = ours(path)) return {FarPublished::What::done, *etag};
  if (is_success) {
    throw IoError({}, "the server's reply does not fit the request", 0)
        .with_hint("does it speak S3's protocol?");
  }
  if (reply.status == 412) return {FarPublished::What::refused, ""};
  const std::string error = error_in(reply.text);
  if (reply.status == 409 || error.starts_with("NoSuchUpload") ||
      error.starts_with("InvalidPart")) {
    return {FarPublished::What::again, ""};
  }
  throw_status(access_, reply, kWriteRights);
}

FarPublished ObjectWriter::put(const std::string& path, std::span<const std::byte> bytes,
                               const std::optional<std::string>& before) {
  return in_context({.file = access_.name + "/" + path}, [&] {
    HttpRequest sent = request("PUT", path);
    sent.body = bytes;
    sent.headers = {md5_header(bytes), kRunHeader + run_};
    return publish(path, std::move(sent), before);
  });
}

FarStore::Begun ObjectWriter::begin_upload(const std::string& path) {
  return in_context({.file = access_.name + "/" + path}, [&] {
    HttpRequest sent = request("POST", path, "uploads=");
    sent.is_awaited = true;
    sent.body.emplace();
    sent.headers = {kRunHeader + run_};
    const HttpReply reply = access_.client->send(sent);
    if (reply.status != 200) throw_status(access_, reply, kWriteRights);
    std::string id = upload_id_in(reply.text);
    if (id.empty()) {
      throw IoError({}, "the server does not begin an upload", 0)
          .with_hint("does it speak S3's protocol (CreateMultipartUpload)?");
    }
    return Begun{std::move(id), reply.maybe_twice};
  });
}

std::string ObjectWriter::send_part(const std::string& path, const std::string& upload,
                                    unsigned number, std::span<const std::byte> bytes) {
  return in_context({.file = access_.name + "/" + path}, [&] {
    if (number > kMostParts) throw std::logic_error("an upload of too many parts");
    HttpRequest sent =
        request("PUT", path,
                "partNumber=" + std::to_string(number) + "&uploadId=" + percent_encoded(upload));
    sent.body = bytes;
    sent.headers = {md5_header(bytes)};
    HttpReply reply = access_.client->send(sent);
    if (reply.status != 200) throw_status(access_, reply, kWriteRights);
    if (reply.etag.empty()) throw IoError({}, "the server gives a part no ETag", 0);
    return std::move(reply.etag);
  });
}

FarPublished ObjectWriter::complete(const std::string& path, const std::string& upload,
                                    std::span<const std::string> parts,
                                    const std::optional<std::string>& before) {
  return in_context({.file = access_.name + "/" + path}, [&] {
    std::string text =
        "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
    for (size_t i = 0; i < parts.size(); ++i) {
      text += "<Part><PartNumber>" + std::to_string(i + 1) + "</PartNumber><ETag>&quot;" +
              xml_text(parts[i]) + "&quot;</ETag></Part>";
    }
    text += "</CompleteMultipartUpload>";
    HttpRequest sent = request("POST", path, "uploadId=" + percent_encoded(upload));
    sent.body = body_of(text);
    sent.fails_in_text = true;
    sent.quiet_seconds = kCompletionSeconds;
    return publish(path, std::move(sent), before);
  });
}

// rclone's reply to an upload has another ETag, `completed`, than the finished object.
std::string ObjectWriter::etag_of_whole(const std::string& path, std::string completed) const {
  if (completes_with_etags_) return completed;
  try {
    const std::optional<std::string> etag = ours(path);
    if (etag == completed) completes_with_etags_ = true;
    return etag.value_or(std::move(completed));
  } catch (const Error&) {  // the object is complete nevertheless
    return completed;
  }
}

void ObjectWriter::abort_upload(const std::string& path, const std::string& upload) {
  in_context({.file = access_.name + "/" + path}, [&] {
    const HttpReply reply =
        access_.client->send(request("DELETE", path, "uploadId=" + percent_encoded(upload)));
    if (reply.status != 204 && reply.status != 200 && reply.status != 404) {
      throw_status(access_, reply, kWriteRights);
    }
  });
}

std::vector<FarUpload> ObjectWriter::uploads(const std::string& front) {
  return in_context({.file = access_.name + "/" + front}, [&] {
    std::vector<FarUpload> found;
    UploadsPage page;
    uint64_t name_bytes = 0;
    do {
      // The parameters are sorted by name, as signatures require.
      std::string query = "encoding-type=url";
      if (page.is_cut) query += "&key-marker=" + percent_encoded(page.next_key);
      query += "&max-uploads=1000&prefix=" + percent_encoded(front);
      if (page.is_cut) query += "&upload-id-marker=" + percent_encoded(page.next_upload);
      const HttpReply reply = access_.client->send(request("GET", "", query + "&uploads="));
      // rclone answers this if there are no uploads.
      if (reply.status == 404 && error_in(reply.text).starts_with("NoSuchUpload")) break;
      if (reply.status != 200) throw_status(access_, reply, kWriteRights);
      const UploadsPage before =
          std::exchange(page, of_right_form([&] { return parse_uploads(reply.text); }));
      if (page.is_cut && page.next_key == before.next_key &&
          page.next_upload == before.next_upload) {
        throw IoError({}, "the list of uploads repeats a page", 0);
      }
      for (ListedUpload& upload : page.uploads) {
        count_name(name_bytes, upload.key);
        count_name(name_bytes, upload.id);
        found.push_back({std::move(upload.key), std::move(upload.id), upload.begun});
      }
      if (found.size() > kMostUploads) {
        throw UnsupportedError({},
                               "has more than " + grouped_count(kMostUploads, "unfinished upload"))
            .with_hint("a lifecycle rule of the bucket (AbortIncompleteMultipartUpload) ends them");
      }
    } while (page.is_cut);
    return found;
  });
}

void ObjectWriter::remove(const std::string& path) {
  in_context({.file = access_.name + "/" + path}, [&] {
    const HttpReply reply = access_.client->send(request("DELETE", path));
    if (reply.status != 204 && reply.status != 200 && reply.status != 404) {
      throw_status(access_, reply, kWriteRights);
    }
  });
}

}  // namespace dsckpt
