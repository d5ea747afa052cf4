// HttpClient: requests to object stores, signed, counted, and sent again where that helps.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bucket/secrets.h"

namespace dsckpt {

struct HttpRequest {
  std::string url;
  std::string method = "GET";
  std::vector<std::string> headers = {};  // "Name: value"
  // The bytes that are wanted; the reply's body is as long as `into`. Else it is text.
  uint64_t offset = 0;
  std::span<std::byte> into = {};
  size_t most = size_t{8} << 20;                        // bytes of text that are taken
  std::optional<std::span<const std::byte>> body = {};  // that is sent
  // A success whose text is an error is one, and as if it had the status 500
  // (CompleteMultipartUpload).
  bool fails_in_text = false;
  bool cleans_up = false;  // also if `cancelled`
  // It makes something: once it is under way its reply is waited for also if `cancelled`, 20 s from
  // then on, since the server may do it later than anybody could ask what came of it.
  bool is_awaited = false;
  bool uses_netrc = false;  // name and password for the server are those of ~/.netrc, if there
  // What nothing that the server says may show, besides the credentials and the headers' values.
  std::vector<std::string_view> secrets = {};
  // With these it is signed (Signature Version 4, for S3) for `region`.
  std::shared_ptr<const Credentials> credentials = {};
  std::string region = {};
  // Once it is set, send() throws InterruptedError soon: nobody wants the reply any more.
  const std::atomic<bool>* given_up = nullptr;
  // For so long the server may say nothing, or next to nothing, before it is asked again.
  long quiet_seconds = 20;
  // Of credential endpoints, which answer at once or are not there: tries once, for so long.
  int seconds = 0;
};

struct HttpReply {
  long status = 0;
  std::string text = {};  // the body, unless it is in `into`
  // Code and message of an error's body, fit to be shown: cut, printable, and without our secrets.
  std::string said = {};
  std::string etag = {};                // without quotes
  std::string region = {};              // x-amz-bucket-region, if it may be one's name
  std::string content_range = {};       // "bytes 0-9/100"
  std::optional<uint64_t> length = {};  // Content-Length
  int64_t modified = 0;                 // Last-Modified, in seconds since the epoch; 0: not said
  std::string run = {};                 // x-amz-meta-dsckpt-run
  size_t received = 0;                  // bytes of the body
  bool maybe_twice = false;             // the server may have had the request before this one
};

struct HttpTraffic {
  uint64_t requests = 0;  // with those that were sent again
  uint64_t repeated = 0;
  uint64_t bytes = 0;  // of bodies that were received
  uint64_t sent = 0;   // of bodies
};

// Any thread. Connections are kept for the requests that follow, HTTP/1.1; the proxy is what
// libcurl's variables say (https_proxy, no_proxy), certificates are checked against the file of
// AWS_CA_BUNDLE, CURL_CA_BUNDLE or SSL_CERT_FILE, or else the system's.
class HttpClient {
 public:
  // At most `requests` are under way at once; others wait. `cancelled` is asked while one waits.
  HttpClient(unsigned requests, std::function<bool()> cancelled);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // The reply, whatever its status. What may pass is tried again, six times in all, after waits
  // that double, with jitter: 408, 429, 500, 502, 503 and 504, 400 for a body that did not come in
  // time (RequestTimeout), names that are not resolved, connections that are refused, reset or cut,
  // and bodies that move at less than 1 KB/s for `quiet_seconds`. Throws IoError when that did not
  // help, for a body that is longer than was asked for, and InterruptedError.
  HttpReply send(const HttpRequest& request);

  HttpTraffic traffic() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsckpt
