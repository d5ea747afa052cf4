// Messages about servers that cannot be reached or do not answer, at the first try and at the last.
// The next caller is none the worse for it. The servers are this process's own, on the loopback.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bucket/http_client.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

constexpr int kTries = 6;

enum class Does { answers, closes, stays_silent, sends_half };

// A server that does the same to all who connect, one after the other; or, after some, answers.
class Loopback {
 public:
  explicit Loopback(Does does, int times = INT_MAX)
      : does_(does), times_(times), socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (::bind(socket_, any, size) != 0 || ::listen(socket_, 16) != 0 ||
        ::getsockname(socket_, any, &size) != 0) {
      throw std::runtime_error("no server on the loopback");
    }
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)) + "/x";
    thread_ = std::thread([this] { run(); });
  }
  ~Loopback() {
    stops_ = true;
    thread_.join();
    ::close(socket_);
  }

  const std::string& url() const { return url_; }
  int connections() const { return connections_; }

 private:
  void run() {
    while (!stops_) {
      if (!is_ready(socket_)) continue;
      const int client = ::accept(socket_, nullptr, nullptr);
      const Does does = ++connections_ > times_ ? Does::answers : does_;
      if (does != Does::closes) serve(client, does);
      ::close(client);
    }
  }
  void serve(int client, Does does) const {
    std::string asked;
    while (!stops_ && asked.find("\r\n\r\n") == asked.npos) {
      if (!is_ready(client)) continue;
      char buffer[4096];
      const ssize_t size = ::recv(client, buffer, sizeof buffer, 0);
      if (size <= 0) return;
      asked.append(buffer, static_cast<size_t>(size));
    }
    if (does == Does::answers || does == Does::sends_half) {
      std::string_view reply =
          "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nabcd";
      if (does == Does::sends_half) reply.remove_suffix(2);
      ::send(client, reply.data(), reply.size(), MSG_NOSIGNAL);
      return;
    }
    // Until the client has gone.
    while (!stops_) {
      char byte = 0;
      if (is_ready(client) && ::recv(client, &byte, 1, 0) <= 0) return;
    }
  }
  static bool is_ready(int of) {
    pollfd wanted{.fd = of, .events = POLLIN, .revents = 0};
    return ::poll(&wanted, 1, 20) > 0;
  }

  const Does does_;
  const int times_;
  const int socket_;
  std::string url_;
  std::atomic<bool> stops_ = false;
  std::atomic<int> connections_ = 0;
  std::thread thread_;
};

// A port on which nobody listens: it is only bound.
class RefusingPort {
 public:
  RefusingPort() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (::bind(socket_, any, size) != 0 || ::getsockname(socket_, any, &size) != 0) {
      throw std::runtime_error("no port on the loopback");
    }
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)) + "/x";
  }
  ~RefusingPort() { ::close(socket_); }
  const std::string& url() const { return url_; }

 private:
  const int socket_;
  std::string url_;
};

// One handle, which requests take in turns.
class OneHandle {
 public:
  std::string failure(const HttpRequest& request) {
    try {
      client_.send(request);
    } catch (const IoError& error) {
      return error.what();
    }
    return "none";
  }
  void expect_answer() {
    HttpRequest request;
    request.url = good_.url();
    EXPECT_EQ(failure(request), "none");
  }
  HttpClient& client() { return client_; }

 private:
  Loopback good_{Does::answers};
  HttpClient client_{1, [] { return false; }};
};

// Asking `url` fails with `words`, after one try and after all of them, and the handle is good for
// others then.
void expect_failure(const std::string& url, const std::string& words) {
  OneHandle handle;
  HttpRequest request;
  request.url = url;
  request.seconds = 2;
  const std::string first = handle.failure(request);
  EXPECT_NE(first.find(words), std::string::npos) << first;
  EXPECT_NE(first.find(", tried 1 time"), std::string::npos) << first;
  handle.expect_answer();
  const uint64_t requests = handle.client().traffic().requests;
  request.seconds = 0;
  const std::string last = handle.failure(request);
  EXPECT_NE(last.find(words), std::string::npos) << last;
  EXPECT_NE(last.find(", tried 6 times"), std::string::npos) << last;
  EXPECT_EQ(handle.client().traffic().requests, requests + kTries);
  handle.expect_answer();
}

class HttpClientTest : public ::testing::Test {
 protected:
  // Proxies of whoever runs the tests have nothing to do with these servers.
  HttpClientTest() {
    for (const char* name : {"http_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}) {
      ::unsetenv(name);
    }
    ::setenv("https_proxy", "http://proxy.invalid:8080", 1);
  }
};

// All at once: most of the time is waits between tries.
TEST_F(HttpClientTest, SaysWhatFailedAtTheFirstTryAndAtTheLast) {
  const RefusingPort refusing;
  const Loopback closing(Does::closes);
  const Loopback cutting(Does::sends_half);
  const std::pair<std::string, std::string> cases[] = {
      {"http://nosuch.invalid:8443/x", "cannot resolve nosuch.invalid"},
      {"https://any.invalid/x", "proxy: proxy.invalid"},
      {refusing.url(), "connect to server"},
      {closing.url(), "cannot be fetched from the server: "},
      {cutting.url(), "with 2 bytes remaining to read"},
  };
  std::vector<std::jthread> all;
  for (const auto& each : cases) {
    all.emplace_back([&each] { expect_failure(each.first, each.second); });
  }
  all.clear();
  EXPECT_GE(closing.connections(), 1 + kTries);
}

TEST_F(HttpClientTest, AsksASilentServerAgain) {
  const Loopback server(Does::stays_silent, 3);
  OneHandle handle;
  HttpRequest request;
  request.url = server.url();
  request.seconds = 1;
  const std::string said = handle.failure(request);
  EXPECT_NE(said.find("timed out"), std::string::npos) << said;
  request.seconds = 0;
  request.quiet_seconds = 1;
  EXPECT_EQ(handle.client().send(request).text, "abcd");
  EXPECT_EQ(server.connections(), 4);
}

TEST_F(HttpClientTest, GoesOnAfterMoreThanWasAskedFor) {
  const Loopback server(Does::answers);
  OneHandle handle;
  HttpRequest request;
  request.url = server.url();
  request.most = 3;
  const std::string said = handle.failure(request);
  EXPECT_NE(said.find("more than was asked for"), std::string::npos) << said;
  handle.expect_answer();
}

}  // namespace
}  // namespace dsckpt
