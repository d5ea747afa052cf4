#include "bucket/http_client.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <string_view>
#include <thread>

#include "base/random.h"
#include "base/text.h"
#include "bucket/curl_library.h"
#include "bucket/listing.h"
#include "bucket/signature.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

constexpr size_t kLongestRegion = 40;
constexpr int kTries = 6;
constexpr std::chrono::milliseconds kFirstWait{100};
constexpr std::chrono::milliseconds kLongestWait{5000};
constexpr std::chrono::milliseconds kNap{50};  // until `cancelled` is looked at again
constexpr long kSlowestBytes = 1000;           // a second
constexpr std::chrono::seconds kAwaited{20};   // for the reply to a request that makes something
constexpr long kConnectSeconds = 15;
constexpr size_t kMostErrorText = 64 << 10;
constexpr size_t kMostHeader = 4096;
constexpr int64_t kLatest = INT64_MAX / 1'000'000'000;  // as nanoseconds

// Where distributions keep the trusted certificates: Debian, Fedora, openSUSE, Alpine.
constexpr const char* kCertificates[] = {"/etc/ssl/certs/ca-certificates.crt",
                                         "/etc/pki/tls/certs/ca-bundle.crt",
                                         "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};

// The handles of one thread's request. `several` keeps a server's connection open.
struct Connection {
  CURL* easy = nullptr;
  CURLM* several = nullptr;
  bool is_used = false;  // it was connected before
};

// A request and its reply.
struct Exchange {
  Connection connection;
  const HttpRequest& request;
  HttpReply reply = {};
  bool has_head = false;  // the whole head
  bool too_long = false;
  char problem[CURL_ERROR_SIZE] = "";  // libcurl's own message
};

bool is_good(long status) {
  return status >= 200 && status < 300;
}

// Returns whether the text looks like "eu-central-1": a hint repeats it literally.
bool is_region_name(std::string_view text) {
  return !text.empty() && text.size() <= kLongestRegion &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
         });
}

std::vector<std::string_view> secrets_of(const HttpRequest& request) {
  std::vector<std::string_view> secrets = request.secrets;
  if (request.credentials != nullptr) {
    const Credentials& own = *request.credentials;
    secrets.insert(secrets.end(), {own.key, own.secret, own.token});
  }
  for (const std::string_view header : request.headers) {
    secrets.push_back(
        without_blanks(header.substr(std::min(header.find(':'), header.size() - 1) + 1)));
  }
  return secrets;
}

extern "C" size_t on_body(char* data, size_t, size_t size, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  HttpReply& reply = exchange.reply;
  if (reply.status == 0) {
    curl().easy_getinfo(exchange.connection.easy, CURLINFO_RESPONSE_CODE, &reply.status);
  }
  const std::span<std::byte> into = exchange.request.into;
  if (!into.empty() && is_good(reply.status)) {
    if (size > into.size() - reply.received) {
      exchange.too_long = true;
      return 0;
    }
    std::memcpy(into.data() + reply.received, data, size);
  } else {
    const size_t most = is_good(reply.status) ? exchange.request.most : kMostErrorText;
    if (size > most - reply.text.size()) {
      exchange.too_long = true;
      return 0;
    }
    // The text may contain secrets, which are wiped in place. So the buffer must never move.
    if (reply.text.empty()) reply.text.reserve(std::min(most, kMostErrorText));
    reply.text.append(data, size);
  }
  reply.received += size;
  return size;
}

extern "C" size_t on_header(char* data, size_t, size_t size, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  HttpReply& reply = exchange.reply;
  const std::string_view line(data, size);
  if (line.starts_with("HTTP/")) exchange.has_head = false;
  if (exchange.has_head) return size;  // a trailer after a chunked body
  if (line == "\r\n" || line == "\n") exchange.has_head = true;
  const size_t colon = line.find(':');
  if (colon == line.npos || size > kMostHeader) return size;
  std::string name(line.substr(0, colon));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  const std::string_view value = without_blanks(line.substr(colon + 1));
  if (name == "etag") {
    reply.etag = value;
    std::erase(reply.etag, '"');
  } else if (name == "x-amz-bucket-region") {
    if (is_region_name(value)) reply.region = value;
  } else if (name == "content-range") {
    reply.content_range = value;
  } else if (name == "content-length") {
    uint64_t length = 0;
    const auto [end, failed] = std::from_chars(value.data(), value.data() + value.size(), length);
    if (failed == std::errc() && end == value.data() + value.size()) reply.length = length;
  } else if (name == "last-modified") {
    tm parts{};
    const std::string text(value);
    if (::strptime(text.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &parts) != nullptr) {
      const int64_t seconds = ::timegm(&parts);
      if (seconds > 0 && seconds <= kLatest) reply.modified = seconds;
    }
  } else if (name == "x-amz-meta-dsckpt-run") {
    reply.run = value;
  }
  return size;
}

// The reply to CompleteMultipartUpload begins before the upload is complete.
bool is_error_in_text(const HttpRequest& request, const HttpReply& reply) {
  return request.fails_in_text && is_good(reply.status) && !error_in(reply.text).empty();
}

// "Your socket connection to the server was not read from or written to within the timeout period"
// (Amazon S3 API Reference, "Error Responses").
bool is_late(const HttpReply& reply) {
  const std::string said = reply.status == 400 ? error_in(reply.text) : "";
  return said == "RequestTimeout" || said.starts_with("RequestTimeout:");
}

// Returns whether a repetition may succeed.
bool may_pass(CURLcode code, long status) {
  switch (code) {
    case CURLE_OK:
      return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 ||
             status == 504;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_PARTIAL_FILE:
    case CURLE_SSL_CONNECT_ERROR:
      return true;
    default:
      return false;
  }
}

// Returns "HOST" for "https://HOST:443/x", and "::1" for "http://[::1]/".
std::string_view host_of(std::string_view url) {
  const size_t scheme = url.find("://");
  if (scheme != url.npos) url.remove_prefix(scheme + 3);
  url = url.substr(0, url.find_first_of("/?#"));
  if (url.starts_with('[')) return url.substr(1, url.find(']') - 1);
  return url.substr(0, url.find(':'));
}

IoError failure_of(CURLcode code, const Exchange& exchange, const std::string& tries) {
  if (code == CURLE_COULDNT_RESOLVE_HOST) {
    return IoError({}, "cannot resolve " + std::string(host_of(exchange.request.url)) + tries, 0)
        .with_hint("is the name right, and is there a network?");
  }
  const char* hint =
      "is it the right server (--s3-endpoint names that of s3://), and is there a network?";
  if (code == CURLE_COULDNT_RESOLVE_PROXY) hint = "https_proxy, http_proxy or all_proxy names it";
  if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE) {
    hint = "AWS_CA_BUNDLE names a file with the certificates to trust";
  }
  const char* const said = exchange.problem;
  return IoError({},
                 "cannot be fetched from the server: " +
                     shown(*said != '\0' ? said : curl().easy_strerror(code),
                           secrets_of(exchange.request)) +
                     tries,
                 0)
      .with_hint(hint);
}

// A list of headers for libcurl. Its destructor wipes the tokens in them.
class HeaderList {
 public:
  ~HeaderList() {
    for (const curl_slist* at = list_; at != nullptr; at = at->next) {
      ::explicit_bzero(at->data, std::strlen(at->data));
    }
    curl().slist_free_all(list_);
  }
  void add(const std::string& header) {
    curl_slist* const longer = curl().slist_append(list_, header.c_str());
    if (longer == nullptr) throw std::bad_alloc();
    list_ = longer;
  }
  curl_slist* get() const { return list_; }

 private:
  curl_slist* list_ = nullptr;
};

template <typename T>
void set(CURL* handle, CURLoption option, T value) {
  const CURLcode code = curl().easy_setopt(handle, option, value);
  if (code == CURLE_OUT_OF_MEMORY) throw std::bad_alloc();
  if (code != CURLE_OK) {
    throw IoError(
        {},
        "libcurl refuses its option " + std::to_string(option) + ": " + curl().easy_strerror(code),
        0)
        .with_hint("libcurl 7.85 and later take it, built with SSL");
  }
}

const char* first_variable(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* const value = ::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return nullptr;
}

// Returns a file of certificates for a libcurl that was built without the place of this machine's.
const char* certificates_here() {
  const curl_version_info_data* const about = curl().version_info(CURLVERSION_NOW);
  if (about->cainfo != nullptr || about->capath != nullptr) return nullptr;
  for (const char* file : kCertificates) {
    if (::access(file, R_OK) == 0) return file;
  }
  return nullptr;
}

}  // namespace

struct HttpClient::Impl {
  Impl(unsigned requests, std::function<bool()> asked)
      : free_(std::max(requests, 1u)), cancelled(std::move(asked)) {
    certificates_ = first_variable({"AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"});
    if (certificates_ == nullptr) certificates_ = certificates_here();
  }
  ~Impl() {
    for (const Connection& connection : idle_) {
      curl().easy_cleanup(connection.easy);
      curl().multi_cleanup(connection.several);
    }
  }

  bool is_cancelled(const HttpRequest& request) const {
    return (!request.cleans_up && cancelled()) ||
           (request.given_up != nullptr && *request.given_up);
  }
  void stop_if_cancelled(const HttpRequest& request) const {
    if (is_cancelled(request)) throw InterruptedError();
  }

  // Waits for a free connection.
  Connection take(const HttpRequest& request) {
    std::unique_lock lock(mutex_);
    while (free_ == 0) {
      changed_.wait_for(lock, kNap);
      stop_if_cancelled(request);
    }
    Connection connection;
    if (!idle_.empty()) {
      connection = idle_.back();
      idle_.pop_back();
    } else {
      connection = {curl().easy_init(), curl().multi_init()};
      if (connection.easy == nullptr || connection.several == nullptr) throw std::bad_alloc();
    }
    --free_;
    return connection;
  }
  // Takes a connection back after a transfer that ended with `code`. A reset handle keeps remains
  // of a failed transfer: after an unknown host a buffer, whose size older libcurls then refuse to
  // set. So such a handle is replaced. `several` keeps the connections.
  void give(Connection connection, CURLcode code) {
    connection.is_used = true;
    if (code == CURLE_OK) {
      curl().easy_reset(connection.easy);
    } else {
      curl().easy_cleanup(connection.easy);
      connection.easy = curl().easy_init();
      if (connection.easy == nullptr) curl().multi_cleanup(connection.several);
    }
    {
      const std::lock_guard lock(mutex_);
      if (connection.easy != nullptr) idle_.push_back(connection);
      ++free_;
    }
    changed_.notify_one();
  }

  // curl_easy_perform() would notice an interruption only once a second.
  CURLcode perform(const Connection& connection, const HttpRequest& request) const {
    if (curl().multi_add_handle(connection.several, connection.easy) != CURLM_OK) {
      return CURLE_FAILED_INIT;
    }
    CURLcode code = CURLE_ABORTED_BY_CALLBACK;
    int running = 1;
    std::optional<std::chrono::steady_clock::time_point> end;
    while (running > 0) {
      if (is_cancelled(request)) {
        const auto now = std::chrono::steady_clock::now();
        if (!end) end = now + (request.is_awaited ? kAwaited : std::chrono::seconds(0));
        if (now >= *end) break;
      }
      if (curl().multi_perform(connection.several, &running) != CURLM_OK) break;
      if (running > 0) curl().multi_poll(connection.several, nullptr, 0, kNap.count(), nullptr);
    }
    int left = 0;
    while (const CURLMsg* message = curl().multi_info_read(connection.several, &left)) {
      if (message->msg == CURLMSG_DONE) code = message->data.result;
    }
    curl().multi_remove_handle(connection.several, connection.easy);
    return code;
  }

  CURLcode once(Exchange& exchange) {
    const HttpRequest& request = exchange.request;
    CURL* const handle = exchange.connection.easy;
    set(handle, CURLOPT_ERRORBUFFER, exchange.problem);
    set(handle, CURLOPT_URL, request.url.c_str());
    set(handle, CURLOPT_PATH_AS_IS, 1L);
    set(handle, CURLOPT_NOSIGNAL, 1L);
    set(handle, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    set(handle, CURLOPT_PROTOCOLS_STR, "http,https");
    set(handle, CURLOPT_USERAGENT, "dsckpt");
    set(handle, CURLOPT_CONNECTTIMEOUT, request.seconds > 0 ? request.seconds : kConnectSeconds);
    set(handle, CURLOPT_TIMEOUT, static_cast<long>(request.seconds));
    set(handle, CURLOPT_LOW_SPEED_LIMIT, kSlowestBytes);
    set(handle, CURLOPT_LOW_SPEED_TIME, request.quiet_seconds);
    set(handle, CURLOPT_TCP_KEEPALIVE, 1L);
    set(handle, CURLOPT_BUFFERSIZE, 256L << 10);
    if (request.body) {
      // libcurl would call a read function for the bytes of an empty body without an address.
      set(handle, CURLOPT_POSTFIELDS,
          request.body->empty() ? "" : reinterpret_cast<const char*>(request.body->data()));
      set(handle, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body->size()));
      set(handle, CURLOPT_UPLOAD_BUFFERSIZE, 128L << 10);
    }
    // Without HOME libcurl would look up the user's home folder, for which a static program loads
    // libraries.
    if (request.uses_netrc && first_variable({"HOME"}) != nullptr) {
      set(handle, CURLOPT_NETRC, static_cast<long>(CURL_NETRC_OPTIONAL));
    }
    if (request.method == "HEAD") set(handle, CURLOPT_NOBODY, 1L);
    if (request.method != "GET") set(handle, CURLOPT_CUSTOMREQUEST, request.method.c_str());
    set(handle, CURLOPT_WRITEFUNCTION, on_body);
    set(handle, CURLOPT_WRITEDATA, &exchange);
    set(handle, CURLOPT_HEADERFUNCTION, on_header);
    set(handle, CURLOPT_HEADERDATA, &exchange);
    if (certificates_ != nullptr) set(handle, CURLOPT_CAINFO, certificates_);
    std::string range;
    if (!request.into.empty()) {
      range = std::to_string(request.offset) + "-" +
              std::to_string(request.offset + request.into.size() - 1);
      set(handle, CURLOPT_RANGE, range.c_str());
    }
    HeaderList headers;
    bool has_type = false;
    for (const std::string& header : request.headers) {
      headers.add(header);
      has_type |= header.starts_with("Content-Type:");
    }
    if (request.body) {
      if (!has_type) headers.add("Content-Type: application/octet-stream");
      headers.add("Expect:");  // waiting for "100 Continue" saves bytes only if the server refuses
    }
    if (request.credentials != nullptr) {
      for (std::string& header :
           signed_headers(request.method, request.url, request.headers, *request.credentials,
                          request.region, ::time(nullptr))) {
        headers.add(header);
        wipe(header);
      }
    }
    set(handle, CURLOPT_HTTPHEADER, headers.get());
    CURLcode code = perform(exchange.connection, request);
    curl().easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &exchange.reply.status);
    // libcurl accepts a truncated head.
    if (code == CURLE_OK && !exchange.has_head) code = CURLE_RECV_ERROR;
    // libcurl itself repeats a request that failed on a kept connection, on a new one.
    long connects = 0;
    curl().easy_getinfo(handle, CURLINFO_NUM_CONNECTS, &connects);
    exchange.reply.maybe_twice = exchange.connection.is_used && connects > 0;
    ++requests_;
    bytes_ += exchange.reply.received;
    if (request.body) sent_ += request.body->size();
    return code;
  }

  void wait(int tries, const HttpRequest& request) {
    const auto longest = std::min(kFirstWait * (1 << tries), kLongestWait);
    thread_local std::minstd_rand random{static_cast<uint32_t>(random_number())};
    const auto chosen =
        std::uniform_int_distribution<int64_t>(longest.count() / 2, longest.count())(random);
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(chosen);
    while (std::chrono::steady_clock::now() < end) {
      stop_if_cancelled(request);
      std::this_thread::sleep_for(kNap);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;  // a connection is free
  unsigned free_;
  std::vector<Connection> idle_;
  const char* certificates_ = nullptr;
  const std::function<bool()> cancelled;
  std::atomic<uint64_t> requests_{0};
  std::atomic<uint64_t> repeated_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> sent_{0};
};

HttpClient::HttpClient(unsigned requests, std::function<bool()> cancelled)
    : impl_(std::make_unique<Impl>(requests, std::move(cancelled))) {}
HttpClient::~HttpClient() = default;

HttpReply HttpClient::send(const HttpRequest& request) {
  for (int tries = 1;; ++tries) {
    impl_->stop_if_cancelled(request);
    const Connection connection = impl_->take(request);
    Exchange exchange{.connection = connection, .request = request};
    CURLcode code = CURLE_FAILED_INIT;
    try {
      code = impl_->once(exchange);
    } catch (...) {
      impl_->give(connection, code);
      throw;
    }
    impl_->give(connection, code);
    const bool has_come = request.is_awaited && code == CURLE_OK;
    if (!has_come) impl_->stop_if_cancelled(request);
    if (exchange.too_long) {
      throw IoError({}, "the server sends more than was asked for", 0)
          .with_hint("a server or proxy that does not honour ranges cannot be read from");
    }
    const bool again = may_pass(code, exchange.reply.status) ||
                       (code == CURLE_OK &&
                        (is_error_in_text(request, exchange.reply) || is_late(exchange.reply)));
    if (again && tries < kTries && request.seconds == 0) {
      ++impl_->repeated_;
      impl_->wait(tries - 1, request);
      continue;
    }
    if (code != CURLE_OK) {
      throw failure_of(code, exchange, again ? ", tried " + counted(tries, "time") : "");
    }
    exchange.reply.maybe_twice = exchange.reply.maybe_twice || tries > 1;
    if (!is_good(exchange.reply.status) || request.fails_in_text) {
      exchange.reply.said = shown(error_in(exchange.reply.text), secrets_of(request));
    }
    return std::move(exchange.reply);
  }
}

HttpTraffic HttpClient::traffic() const {
  return {impl_->requests_, impl_->repeated_, impl_->bytes_, impl_->sent_};
}

}  // namespace dsckpt
