#include "bucket/credentials.h"

#include <string.h>
#include <time.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <pugixml.hpp>
#include <string_view>

#include "base/json.h"
#include "base/text.h"
#include "bucket/bucket_url.h"
#include "bucket/listing.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

constexpr uintmax_t kMostSettings = 1 << 20;
constexpr int64_t kBeforeTheEnd = 300;  // seconds
constexpr int64_t kBetweenTries = 20;   // seconds between tries before the end
constexpr int kAgainSeconds = 5;        // for each request while the known credentials are valid
constexpr int kLocalSeconds = 2;        // for a request that this machine answers
constexpr uintmax_t kMostToken = 64 << 10;
constexpr const char* kContainerHost = "http://169.254.170.2";
constexpr const char* kInstanceHost = "http://169.254.169.254";

std::string value_of(const Variables& variables, const char* name) {
  const char* const value = variables(name);
  return value == nullptr ? "" : value;
}

// Reads one file's settings of `profile`. Returns false if the file has no such profile.
bool read_profile(const std::filesystem::path& path, const std::string& profile,
                  std::map<std::string, std::string>& settings) {
  std::error_code failed;
  const uintmax_t size = std::filesystem::file_size(path, failed);
  if (failed == std::errc::no_such_file_or_directory || failed == std::errc::not_a_directory) {
    return false;
  }
  if (failed) throw IoError({.file = path.string()}, "cannot be looked at", failed.value());
  if (size > kMostSettings) throw IoError({.file = path.string()}, "is too long to be settings", 0);
  std::ifstream file(path);
  if (!file) throw IoError({.file = path.string()}, "cannot open", errno);
  bool is_there = false;
  bool is_ours = false;
  for (std::string line; std::getline(file, line);) {
    const bool is_nested = line.starts_with(' ') || line.starts_with('\t');
    const std::string_view text = without_blanks(line);
    if (text.starts_with('[') && text.ends_with(']')) {
      std::string_view name = without_blanks(text.substr(1, text.size() - 2));
      if (name.starts_with("profile ")) name = without_blanks(name.substr(8));
      is_ours = name == profile;
      is_there |= is_ours;
    } else if (is_ours && !is_nested && !text.starts_with('#') && !text.starts_with(';')) {
      const size_t equals = text.find('=');
      if (equals != text.npos) {
        settings.emplace(without_blanks(text.substr(0, equals)),
                         without_blanks(text.substr(equals + 1)));
      }
    }
    ::explicit_bzero(line.data(), line.size());
  }
  return is_there;
}

std::filesystem::path settings_file(const Variables& variables, const char* variable,
                                    const char* name) {
  const std::string given = value_of(variables, variable);
  if (!given.empty()) return given;
  return std::filesystem::path(value_of(variables, "HOME")) / ".aws" / name;
}

// "2026-11-25T13:00:00Z"
int64_t seconds_of(const std::string& text) {
  tm parts{};
  if (::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts) == nullptr) return 0;
  return ::timegm(&parts);
}

// Parses the answer of both endpoints.
std::shared_ptr<const Credentials> parse_answer(HttpReply& reply, const std::string& who) {
  auto found = std::make_shared<Credentials>();
  try {
    const nlohmann::json answer = parse_json(reply.text);
    found->key = answer.at("AccessKeyId").get<std::string>();
    found->secret = answer.at("SecretAccessKey").get<std::string>();
    found->token = answer.value("Token", "");
    found->expires = seconds_of(answer.value("Expiration", ""));
  } catch (const nlohmann::json::exception&) {
    wipe(reply.text);
    throw IoError({}, who + " does not answer with credentials", 0)
        .with_hint("keys of your own are in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
  }
  wipe(reply.text);
  return found;
}

// Parses the answer of AssumeRoleWithWebIdentity in place, so that no copy of the secrets stays.
std::shared_ptr<const Credentials> parse_role(HttpReply& reply) {
  auto found = std::make_shared<Credentials>();
  {
    pugi::xml_document document;
    const bool is_xml = bool(document.load_buffer_inplace(reply.text.data(), reply.text.size()));
    const pugi::xml_node keys = is_xml ? document.child("AssumeRoleWithWebIdentityResponse")
                                             .child("AssumeRoleWithWebIdentityResult")
                                             .child("Credentials")
                                       : pugi::xml_node();
    found->key = keys.child("AccessKeyId").text().get();
    found->secret = keys.child("SecretAccessKey").text().get();
    found->token = keys.child("SessionToken").text().get();
    found->expires = seconds_of(keys.child("Expiration").text().get());
  }
  wipe(reply.text);
  if (!found->key.empty() && !found->secret.empty()) return found;
  throw IoError({}, "the token service does not answer with credentials", 0)
      .with_hint("is AWS_ENDPOINT_URL_STS right?");
}

// `named_by`: the variable with the file's path.
std::string token_in(const std::string& file, const std::string& named_by) {
  std::error_code failed;
  const uintmax_t size = std::filesystem::file_size(file, failed);
  std::string token;
  std::ifstream stream(file);
  if (!failed && size <= kMostToken) std::getline(stream, token);
  while (token.ends_with('\r') || token.ends_with(' ')) token.pop_back();
  if (!token.empty()) return token;
  throw IoError({.file = file}, "holds no token", failed.value()).with_hint(named_by + " names it");
}

HttpRequest local_request(std::string url) {
  HttpRequest request;
  request.url = std::move(url);
  request.most = 64 << 10;
  request.seconds = kLocalSeconds;
  return request;
}

bool is_there(const HttpReply& reply) {
  return reply.status == 200;
}

}  // namespace

SharedSettings read_shared_settings(const Variables& variables) {
  const std::string named = value_of(variables, "AWS_PROFILE");
  const std::string profile = named.empty() ? "default" : named;
  std::map<std::string, std::string> settings;
  const bool in_first = read_profile(
      settings_file(variables, "AWS_SHARED_CREDENTIALS_FILE", "credentials"), profile, settings);
  const bool in_second =
      read_profile(settings_file(variables, "AWS_CONFIG_FILE", "config"), profile, settings);
  if (!named.empty() && !in_first && !in_second) {
    throw UsageError("AWS_PROFILE: there is no profile '" + named + "'")
        .with_hint("profiles are in ~/.aws/credentials and ~/.aws/config");
  }
  SharedSettings shared;
  shared.region = settings["region"];
  shared.endpoint = settings["endpoint_url"];
  shared.role = settings["role_arn"];
  shared.session = settings["role_session_name"];
  shared.identity_file = settings["web_identity_token_file"];
  if (!settings["aws_access_key_id"].empty() && !settings["aws_secret_access_key"].empty()) {
    auto found = std::make_shared<Credentials>();
    found->key = settings["aws_access_key_id"];
    found->secret = settings["aws_secret_access_key"];
    found->token = settings["aws_session_token"];
    shared.credentials = std::move(found);
  }
  for (auto& [name, value] : settings) ::explicit_bzero(value.data(), value.size());
  return shared;
}

std::shared_ptr<const Credentials> CredentialSource::get() {
  const std::lock_guard lock(mutex_);
  const int64_t now = ::time(nullptr);
  if (known_ == nullptr || (known_->expires != 0 && now >= known_->expires)) {
    known_ = find();
  } else if (known_->expires != 0 && now > known_->expires - kBeforeTheEnd && now >= next_try_) {
    next_try_ = now + kBetweenTries;
    try {
      known_ = find();
    } catch (const Error&) {  // the known ones are still valid
    }
  }
  return known_;
}

// New credentials in an interrupted run are for cleaning up, so the interruption must not stop this
// request. It ends soon while the known ones are valid.
HttpReply CredentialSource::ask(HttpRequest& request) {
  request.cleans_up = known_ != nullptr;
  const bool can_wait = known_ != nullptr && ::time(nullptr) < known_->expires;
  if (can_wait && request.seconds == 0) request.seconds = kAgainSeconds;
  return client_.send(request);
}

std::shared_ptr<const Credentials> CredentialSource::find() {
  auto found = std::make_shared<Credentials>();
  found->key = value_of(variables_, "AWS_ACCESS_KEY_ID");
  found->secret = value_of(variables_, "AWS_SECRET_ACCESS_KEY");
  found->token = value_of(variables_, "AWS_SESSION_TOKEN");
  if (!found->key.empty() && !found->secret.empty()) return found;
  if (const std::string file = value_of(variables_, "AWS_WEB_IDENTITY_TOKEN_FILE"); !file.empty()) {
    return of_web_identity(file, value_of(variables_, "AWS_ROLE_ARN"),
                           value_of(variables_, "AWS_ROLE_SESSION_NAME"));
  }
  if (shared_.credentials != nullptr) return shared_.credentials;
  if (!shared_.identity_file.empty()) {
    return of_web_identity(shared_.identity_file, shared_.role, shared_.session);
  }
  if (auto of = of_container()) return of;
  if (auto of = of_instance()) return of;
  throw IoError({}, "there are no credentials to sign requests with", 0)
      .with_hint(
          "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE and ~/.aws; `aws "
          "configure export-credentials --format env` prints those of a login; --s3-unsigned reads "
          "public objects");
}

std::shared_ptr<const Credentials> CredentialSource::of_web_identity(const std::string& file,
                                                                     const std::string& role,
                                                                     std::string session) {
  if (role.empty()) {
    throw IoError({.file = file}, "is a token without a role", 0)
        .with_hint("AWS_ROLE_ARN, or role_arn in the profile, names the role to take");
  }
  if (session.empty()) session = "dsckpt-" + std::to_string(::time(nullptr));
  std::string url;
  for (const char* name : {"AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL"}) {
    if (url.empty()) url = value_of(variables_, name);
  }
  if (url.empty()) url = "https://sts." + region_ + ".amazonaws.com";
  while (url.ends_with('/')) url.pop_back();
  std::string token =
      token_in(file, "AWS_WEB_IDENTITY_TOKEN_FILE, or web_identity_token_file in the profile,");
  std::string encoded = percent_encoded(token);
  std::string form =
      "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=" + percent_encoded(role) +
      "&RoleSessionName=" + percent_encoded(session) + "&WebIdentityToken=" + encoded;
  HttpRequest request;
  request.url = url + "/";
  request.method = "POST";
  request.headers = {"Content-Type: application/x-www-form-urlencoded"};
  request.body = std::as_bytes(std::span(form));
  request.most = 64 << 10;
  request.secrets = {token, encoded};
  HttpReply reply;
  try {
    reply = ask(request);
  } catch (const Error& error) {
    for (std::string* text : {&token, &encoded, &form}) wipe(*text);
    if (error.kind() != ErrorKind::io) throw;
    throw IoError({}, "the token service " + url + ": " + error.message(), 0)
        .with_hint("is AWS_ENDPOINT_URL_STS, or the region, right?");
  }
  for (std::string* text : {&token, &encoded, &form}) wipe(*text);
  if (is_there(reply)) return parse_role(reply);
  const std::string& said = reply.said;
  throw IoError({},
                "the token service " + url + " gives no credentials of " + role + ": status " +
                    std::to_string(reply.status) + (said.empty() ? "" : " (" + said + ")"),
                0)
      .with_hint("the role must trust the issuer of the token in " + file +
                 ", and the token must not have expired");
}

std::shared_ptr<const Credentials> CredentialSource::of_container() {
  const std::string relative = value_of(variables_, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  std::string url = value_of(variables_, "AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (!relative.empty()) url = kContainerHost + relative;
  if (url.empty()) return nullptr;
  HttpRequest request = local_request(url);
  std::string token = value_of(variables_, "AWS_CONTAINER_AUTHORIZATION_TOKEN");
  constexpr const char* token_file = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE";
  if (const std::string path = value_of(variables_, token_file); !path.empty()) {
    token = token_in(path, token_file);
  }
  if (!token.empty()) request.headers.push_back("Authorization: " + token);
  HttpReply reply = ask(request);
  for (std::string& header : request.headers) wipe(header);
  wipe(token);
  if (!is_there(reply)) {
    throw IoError(
        {}, "the container's credentials are unavailable: status " + std::to_string(reply.status),
        0)
        .with_hint(
            "AWS_CONTAINER_AUTHORIZATION_TOKEN, or the file of ..._TOKEN_FILE, has to be the "
            "container's; keys of your own are in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
  }
  return parse_answer(reply, "the container's endpoint");
}

// "Use the Instance Metadata Service to access instance metadata", version 2.
std::shared_ptr<const Credentials> CredentialSource::of_instance() {
  if (value_of(variables_, "AWS_EC2_METADATA_DISABLED") == "true") return nullptr;
  std::string host = value_of(variables_, "AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (host.empty()) host = kInstanceHost;
  while (host.ends_with('/')) host.pop_back();
  const std::string roles = host + "/latest/meta-data/iam/security-credentials/";
  HttpReply token;
  try {
    HttpRequest request = local_request(host + "/latest/api/token");
    request.method = "PUT";
    request.headers = {"X-aws-ec2-metadata-token-ttl-seconds: 300"};
    token = ask(request);
  } catch (const IoError&) {
    return nullptr;  // the machine is not such an instance
  }
  if (!is_there(token)) return nullptr;
  const std::string signs = "X-aws-ec2-metadata-token: " + token.text;
  HttpRequest request = local_request(roles);
  request.headers = {signs};
  const HttpReply role = ask(request);
  if (!is_there(role) || role.text.empty()) return nullptr;  // the instance has no role
  HttpRequest wanted =
      local_request(roles + std::string(without_blanks(role.text.substr(0, role.text.find('\n')))));
  wanted.headers = {signs};
  HttpReply reply = ask(wanted);
  if (!is_there(reply)) {
    throw IoError(
        {}, "the instance's credentials are unavailable: status " + std::to_string(reply.status), 0)
        .with_hint("keys of your own are in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
  }
  return parse_answer(reply, "the instance's metadata service");
}

}  // namespace dsckpt
