#include "bucket/bucket_access.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/text.h"
#include "bucket/bucket_url.h"

namespace dsckpt {
namespace {

constexpr uint64_t kMostObjects = 4'000'000;
constexpr unsigned kMostEmptyPages = 1000;
constexpr const char* kObjectsAPage = "1000";

}  // namespace

HttpRequest request_of(const BucketAccess& access, const std::string& path) {
  HttpRequest request;
  request.url = access.url + path;
  request.region = access.region;
  request.uses_netrc = access.is_web;
  if (access.credentials != nullptr) request.credentials = access.credentials->get();
  return request;
}

IoError changed_while_read() {
  return IoError({}, "changed while it was being read", 0)
      .with_hint("run again once nobody writes to it");
}

namespace {

[[noreturn]] void throw_web_status(const HttpReply& reply) {
  const std::string text = "the server answers " + std::to_string(reply.status);
  const char* hint = "can a browser open it?";
  if (reply.status == 401 || reply.status == 403) {
    hint =
        "~/.netrc gives a name and password: machine HOST login NAME password PASSWORD; for a "
        "folder, the server must show an index";
  } else if (reply.status == 404 || reply.status == 410) {
    hint = "is it still there?";
  } else if (reply.status >= 301 && reply.status <= 308) {
    hint = "it leads to another URL: give that one";
  } else if (reply.status == 412) {
    throw changed_while_read();
  } else if (reply.status >= 500 || reply.status == 429) {
    hint = "it was asked several times; fewer requests at once: --s3-requests 8";
  }
  throw IoError({}, text, 0).with_hint(hint);
}

}  // namespace

void throw_status(const BucketAccess& access, const HttpReply& reply, const std::string& right) {
  if (access.is_web) throw_web_status(reply);
  const std::string& said = reply.said;
  const std::string text = "the server answers " + std::to_string(reply.status) +
                           (said.empty() ? "" : " (" + said + ")");
  const bool elsewhere = !reply.region.empty() && reply.region != access.region;
  if (elsewhere &&
      (reply.status == 301 || reply.status == 307 || reply.status == 400 || reply.status == 403)) {
    throw IoError({}, text + "; the bucket is in another region", 0)
        .with_hint("--s3-region " + reply.region);
  }
  switch (reply.status) {
    case 401:
    case 403:
      throw IoError({}, text, 0)
          .with_hint(access.credentials != nullptr
                         ? "these credentials may not do that: another AWS_PROFILE, a key that has "
                           "not expired, " +
                               right + " are needed; is the region right (--s3-region)?"
                         : "it is not public: leave out --s3-unsigned");
    case 404:
      throw IoError({}, text, 0)
          .with_hint("is it still there, and are bucket and endpoint right (--s3-endpoint)?");
    case 412:
      throw changed_while_read();
    default:
      throw IoError({}, text, 0)
          .with_hint(reply.status >= 500 || reply.status == 429
                         ? "it was asked several times; fewer requests at once: --s3-requests 8"
                         : "is it a server that speaks S3's protocol (--s3-endpoint)?");
  }
}

void count_name(uint64_t& bytes, std::string_view name) {
  bytes += name.size();
  if (bytes <= kMostNameBytes) return;
  throw UnsupportedError({}, "has names of more than " + human_bytes(kMostNameBytes) + " in all")
      .with_hint("give the checkpoint's own folder or prefix");
}

namespace {

// Names are shown in messages, so a name must not contain a secret.
void refuse_secrets(const HttpRequest& request, std::string_view name) {
  if (request.credentials == nullptr) return;
  const Credentials& own = *request.credentials;
  for (const std::string_view secret :
       {std::string_view(own.key), std::string_view(own.secret), std::string_view(own.token)}) {
    if (secret.empty() || name.find(secret) == name.npos) continue;
    throw IoError({}, "the listing has a name with the request's credentials in it", 0);
  }
}

}  // namespace

std::vector<ListedObject> list_objects(const BucketAccess& access, const std::string& prefix,
                                       bool beside, bool cleans_up) {
  std::vector<ListedObject> found;
  std::string next;
  uint64_t name_bytes = 0;
  unsigned empty_pages = 0;  // in a row
  do {
    // The parameters are sorted by name, as signatures require.
    std::string query = "?";
    if (!next.empty()) query += "continuation-token=" + percent_encoded(next) + "&";
    if (beside) query += "delimiter=%2F&";
    query += "encoding-type=url&list-type=2&max-keys=" + std::string(kObjectsAPage) +
             "&prefix=" + percent_encoded(prefix);
    HttpRequest request = request_of(access, "/" + query);
    request.cleans_up = cleans_up;
    const HttpReply reply = access.client->send(request);
    if (reply.status != 200) throw_status(access, reply);
    ListingPage page = of_right_form([&] { return parse_listing(reply.text); });
    for (std::string& folder_key : page.prefixes) {
      page.objects.push_back({.key = std::move(folder_key)});
    }
    const auto is_other = [&](const ListedObject& object) {
      return !object.key.starts_with(prefix);
    };
    empty_pages = page.objects.empty() ? empty_pages + 1 : 0;
    if (std::any_of(page.objects.begin(), page.objects.end(), is_other) ||
        (!page.next.empty() && page.next == next) || empty_pages > kMostEmptyPages) {
      throw IoError({}, "the listing does not belong to the request", 0);
    }
    for (const ListedObject& object : page.objects) {
      count_name(name_bytes, object.key);
      count_name(name_bytes, object.etag);
      refuse_secrets(request, object.key);
    }
    found.insert(found.end(), std::make_move_iterator(page.objects.begin()),
                 std::make_move_iterator(page.objects.end()));
    if (found.size() > kMostObjects) {
      throw UnsupportedError({}, "has more than " + counted(kMostObjects, "object"))
          .with_hint("give the checkpoint's own prefix: s3://BUCKET/PREFIX");
    }
    next = std::move(page.next);
  } while (!next.empty());
  return found;
}

}  // namespace dsckpt
