// Who signs requests, and where the store is: what the AWS command line and SDKs look at, in their
// order (AWS SDKs and Tools Reference Guide, "Standardized credential providers").
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "bucket/http_client.h"

namespace dsckpt {

// As getenv(3).
using Variables = std::function<const char*(const char*)>;

// Settings of one profile in ~/.aws/credentials and ~/.aws/config, or AWS_SHARED_CREDENTIALS_FILE
// and AWS_CONFIG_FILE. The profile is AWS_PROFILE's, or "default".
struct SharedSettings {
  std::shared_ptr<const Credentials> credentials = {};  // nullptr: none there
  std::string region = {};
  std::string endpoint = {};  // endpoint_url
  // A role that is taken with the token in a file, which another service signs.
  std::string role = {};           // role_arn
  std::string session = {};        // role_session_name
  std::string identity_file = {};  // web_identity_token_file
};
// Throws IoError for a file that is there and cannot be read, or is longer than 1 MiB, UsageError
// for an AWS_PROFILE that is in none of them.
SharedSettings read_shared_settings(const Variables& variables);

// Any thread. Credentials that end are fetched again some minutes before, and then now and then
// until they are there; those that are known hold until they end.
class CredentialSource {
 public:
  // `region`: of the service that gives roles.
  CredentialSource(Variables variables, SharedSettings shared, std::string region,
                   HttpClient& client)
      : variables_(std::move(variables)),
        shared_(std::move(shared)),
        region_(std::move(region)),
        client_(client) {}

  // The environment's, those of a role that the environment's web identity has
  // (AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN; AWS Security Token Service API Reference,
  // AssumeRoleWithWebIdentity), the shared files' keys or web identity, a container's
  // (AWS_CONTAINER_CREDENTIALS_FULL_URI and _RELATIVE_URI), or the instance's (IMDSv2). Throws
  // IoError if there are none, or what should give them does not, InterruptedError.
  std::shared_ptr<const Credentials> get();

 private:
  HttpReply ask(HttpRequest& request);
  std::shared_ptr<const Credentials> find();
  std::shared_ptr<const Credentials> of_web_identity(const std::string& file,
                                                     const std::string& role, std::string session);
  std::shared_ptr<const Credentials> of_container();
  std::shared_ptr<const Credentials> of_instance();

  const Variables variables_;
  const SharedSettings shared_;
  const std::string region_;
  HttpClient& client_;
  std::mutex mutex_;
  std::shared_ptr<const Credentials> known_;
  int64_t next_try_ = 0;  // seconds since the epoch
};

}  // namespace dsckpt
