// HttpClient: signed requests to object stores, with counts and retries.
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
  // The wanted bytes: the reply's body is as long as `into`. Without `into` it is text.
  uint64_t offset = 0;
  std::span<std::byte> into = {};
  size_t most = size_t{8} << 20;                        // bytes of text that are taken
  std::optional<std::span<const std::byte>> body = {};  // that is sent
  // Treat a success whose text is an error as an error of status 500 (CompleteMultipartUpload).
  bool fails_in_text = false;
  bool cleans_up = false;  // also if `cancelled`
  // The request makes something. Once it is under way, its reply is awaited even if `cancelled`,
  // for 20 s from then on. The server may act later than anybody could ask for the result.
  bool is_awaited = false;
  bool uses_netrc = false;  // name and password for the server are those of ~/.netrc, if there
  // Secrets that must not appear in texts from the server, besides the credentials and the headers'
  // values.
  std::vector<std::string_view> secrets = {};
  // Credentials to sign it with (Signature Version 4, for S3) for `region`.
  std::shared_ptr<const Credentials> credentials = {};
  std::string region = {};
  // Once it is set, send() soon throws InterruptedError: the reply is no longer needed.
  const std::atomic<bool>* given_up = nullptr;
  // The time in which the server may send nothing, or almost nothing, before a retry.
  long quiet_seconds = 20;
  // For credential endpoints, which answer at once or do not exist: tries once, for this time.
  int seconds = 0;
};

struct HttpReply {
  long status = 0;
  std::string text = {};  // the body, unless it is in `into`
  // Code and message of an error's body, safe to show: cut, printable, and without our secrets.
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

// Any thread. Connections are kept for later requests, HTTP/1.1. The proxy comes from libcurl's
// variables (https_proxy, no_proxy). Certificates are checked against the file of AWS_CA_BUNDLE,
// CURL_CA_BUNDLE or SSL_CERT_FILE, else the system's.
class HttpClient {
 public:
  // At most `requests` run at once; others wait, and call `cancelled` meanwhile.
  HttpClient(unsigned requests, std::function<bool()> cancelled);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // The reply, whatever its status. Transient errors are retried, six tries in all, after waits
  // that double, with jitter. These are the statuses 408, 429, 500, 502, 503 and 504, and 400 for a
  // body that came too late (RequestTimeout). They include names that are not resolved, connections
  // that are refused, reset or cut, and bodies slower than 1 KB/s for `quiet_seconds`. Throws
  // InterruptedError. Throws IoError if retries do not help, and for a body that is longer than was
  // asked for.
  HttpReply send(const HttpRequest& request);

  HttpTraffic traffic() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsckpt
