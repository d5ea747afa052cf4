#include "bucket/signature.h"

#include <nettle/hmac.h>
#include <string.h>
#include <time.h>

#include <array>
#include <span>

#include "base/sha256.h"

namespace dsckpt {
namespace {

constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256";
constexpr std::string_view kPayload = "UNSIGNED-PAYLOAD";

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Sha256Digest hmac(std::span<const std::byte> key, std::string_view text) {
  hmac_sha256_ctx context;
  ::hmac_sha256_set_key(&context, key.size(), reinterpret_cast<const uint8_t*>(key.data()));
  ::hmac_sha256_update(&context, text.size(), reinterpret_cast<const uint8_t*>(text.data()));
  Sha256Digest digest;
  ::hmac_sha256_digest(&context, digest.size(), reinterpret_cast<uint8_t*>(digest.data()));
  ::explicit_bzero(&context, sizeof context);
  return digest;
}

std::string time_text(int64_t seconds) {
  const auto time = static_cast<time_t>(seconds);
  tm parts{};
  ::gmtime_r(&time, &parts);
  std::array<char, 32> text{};
  const size_t size = ::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &parts);
  return {text.data(), size};
}

}  // namespace

std::vector<std::string> signed_headers(std::string_view method, std::string_view url,
                                        std::span<const std::string> more,
                                        const Credentials& credentials, std::string_view region,
                                        int64_t now) {
  const size_t host_begin = url.find("://") + 3;
  const size_t host_end = std::min(url.find_first_of("/?", host_begin), url.size());
  const size_t path_end = std::min(url.find('?', host_end), url.size());
  const std::string_view host = url.substr(host_begin, host_end - host_begin);
  const std::string_view path = url.substr(host_end, path_end - host_end);
  const std::string_view query = path_end < url.size() ? url.substr(path_end + 1) : "";
  const std::string date = time_text(now);

  std::string headers = "host:" + std::string(host) +
                        "\nx-amz-content-sha256:" + std::string(kPayload) + "\nx-amz-date:" + date +
                        "\n";
  std::string names = "host;x-amz-content-sha256;x-amz-date";
  for (const std::string& header : more) {
    if (!header.starts_with("x-amz-meta-")) continue;
    const size_t colon = header.find(": ");
    headers += header.substr(0, colon) + ":" + header.substr(colon + 2) + "\n";
    names += ";" + header.substr(0, colon);
  }
  if (!credentials.token.empty()) {
    headers += "x-amz-security-token:" + credentials.token + "\n";
    names += ";x-amz-security-token";
  }
  std::string request = std::string(method) + "\n" + (path.empty() ? "/" : std::string(path)) +
                        "\n" + std::string(query) + "\n" + headers + "\n" + names + "\n" +
                        std::string(kPayload);
  Sha256 sha;
  sha.update(bytes_of(request));
  const std::string day = date.substr(0, 8);
  const std::string scope = day + "/" + std::string(region) + "/s3/aws4_request";
  const std::string text =
      std::string(kAlgorithm) + "\n" + date + "\n" + scope + "\n" + hex_digits(sha.digest());

  std::string secret = "AWS4" + credentials.secret;
  Sha256Digest key = hmac(bytes_of(secret), day);
  for (const std::string_view part :
       {region, std::string_view("s3"), std::string_view("aws4_request")}) {
    key = hmac(key, part);
  }
  const std::string signature = hex_digits(hmac(key, text));
  for (std::string* each : {&secret, &headers, &request}) {
    ::explicit_bzero(each->data(), each->size());
  }
  ::explicit_bzero(key.data(), key.size());

  std::vector<std::string> result{
      "Host: " + std::string(host), "x-amz-content-sha256: " + std::string(kPayload),
      "x-amz-date: " + date,
      "Authorization: " + std::string(kAlgorithm) + " Credential=" + credentials.key + "/" + scope +
          ", SignedHeaders=" + names + ", Signature=" + signature};
  if (!credentials.token.empty()) {
    result.push_back("x-amz-security-token: " + credentials.token);
  }
  return result;
}

}  // namespace dsckpt
