// The credentials that sign requests, and the place of the store. They come from the sources of the
// AWS command line and SDKs, in the same order (AWS SDKs and Tools Reference Guide, "Standardized
// credential providers").
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

// Settings of one profile in ~/.aws/credentials and ~/.aws/config, or in
// AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE. The profile is AWS_PROFILE, or "default".
struct SharedSettings {
  std::shared_ptr<const Credentials> credentials = {};  // nullptr: none there
  std::string region = {};
  std::string endpoint = {};  // endpoint_url
  // A role, assumed with a token in a file that another service signs.
  std::string role = {};           // role_arn
  std::string session = {};        // role_session_name
  std::string identity_file = {};  // web_identity_token_file
};
// Throws IoError for a file that cannot be read or is longer than 1 MiB. Throws UsageError for an
// AWS_PROFILE that no file has.
SharedSettings read_shared_settings(const Variables& variables);

// Any thread. Credentials that expire are fetched again some minutes before, with retries now and
// then. Until new ones come, the old ones are used as long as they are valid.
class CredentialSource {
 public:
  // `region` is that of the service for roles.
  CredentialSource(Variables variables, SharedSettings shared, std::string region,
                   HttpClient& client)
      : variables_(std::move(variables)),
        shared_(std::move(shared)),
        region_(std::move(region)),
        client_(client) {}

  // The credentials from the first source that has any:
  // * The environment's keys.
  // * The role of the environment's web identity (AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN; AWS
  //   Security Token Service API Reference, AssumeRoleWithWebIdentity).
  // * The shared files' keys or web identity.
  // * The container's (AWS_CONTAINER_CREDENTIALS_FULL_URI and _RELATIVE_URI).
  // * The instance's (IMDSv2).
  //
  // Throws IoError if there are none, or if their source fails, InterruptedError.
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
