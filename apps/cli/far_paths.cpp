#include "cli/far_paths.h"

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/text.h"
#include "bucket/bucket_url.h"
#include "bucket/buckets.h"
#include "cli/cli.h"
#include "cli/interrupt.h"
#include "cli/messages.h"
#include "cli/option_facts.h"
#include "dsckpt/error.h"
#include "exec/workers.h"
#include "group/launch.h"

namespace dsckpt::cli {
namespace {

constexpr const char* kFarGroup = "Object stores (s3://BUCKET/PREFIX)";
constexpr int kMostRequests = 256;

BucketOptions& options_given() {
  static BucketOptions options;
  return options;
}

// Of the FarPaths that lives.
std::unique_ptr<Buckets>& buckets() {
  static std::unique_ptr<Buckets> buckets;
  return buckets;
}

// CLI11 gives what was typed, and takes what it is to be.
CLI::Option* take_urls(CLI::Option* option, BucketUse use) {
  const auto to_place = [use](std::string& text) {
    if (is_url(text) && buckets() != nullptr) text = buckets()->place_of(text, use).string();
    return std::string();
  };
  return some_path(option)->transform(CLI::Validator(to_place, "", "far_path"));
}

bool is_one_of_several(const GroupOptions& group) {
  if (group.engine == GroupEngine::none) return false;
  const std::optional<Launch> launch = find_launch(::getenv);
  return launch && launch->size > 1;
}

// Of a URL that is neither an input nor an output.
void refuse_other_urls(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& value : option->results()) {
      if (!value.starts_with("s3://")) continue;
      throw UsageError(option->get_name() + ": " + value + " cannot be in an object store")
          .with_hint("give a path here; checkpoints and outputs may be there");
    }
  }
  for (const CLI::App* sub : app.get_subcommands()) refuse_other_urls(*sub);
}

std::string traffic_text(const HttpTraffic& traffic, const std::string& whom) {
  std::string text = counted(traffic.requests, "request") + " to " + whom + ", " +
                     human_bytes(traffic.bytes) + " received";
  if (traffic.sent > 0) text += ", " + human_bytes(traffic.sent) + " sent";
  if (traffic.repeated > 0) text += "; " + grouped(traffic.repeated) + " sent again";
  return text;
}

}  // namespace

std::optional<nlohmann::json> far_traffic_json() {
  if (buckets() == nullptr || buckets()->is_empty()) return std::nullopt;
  const HttpTraffic traffic = buckets()->traffic();
  return nlohmann::json{{"requests", traffic.requests},
                        {"repeated", traffic.repeated},
                        {"bytes", traffic.bytes},
                        {"bytes_sent", traffic.sent}};
}

CLI::Option* input_path(CLI::Option* option) {
  return take_urls(option, BucketUse::input);
}

CLI::Option* output_path(CLI::Option* option) {
  return take_urls(option, BucketUse::output);
}

void add_far_options(CLI::App& app) {
  BucketOptions& options = options_given();
  app.add_option("--s3-endpoint", options.endpoint,
                 "Where the store is (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the "
                 "profile's\nendpoint_url, or else AWS)")
      ->type_name("URL")
      ->group(kFarGroup);
  app.add_option("--s3-region", options.region,
                 "Its region (default: AWS_REGION, AWS_DEFAULT_REGION, the profile's, or "
                 "us-east-1)")
      ->type_name("REGION")
      ->group(kFarGroup);
  one_of(app.add_option_function<std::string>(
             "--s3-path-style",
             [&options](const std::string& word) { options.path_style = word == "on"; },
             "on: ENDPOINT/BUCKET, off: BUCKET.ENDPOINT (default: on where there is an endpoint)"),
         {"on", "off"})
      ->type_name("WHEN")
      ->group(kFarGroup);
  app.add_flag("--s3-unsigned", options.is_unsigned, "Sign no requests: the bucket is public")
      ->group(kFarGroup);
  in_range(app.add_option("--s3-requests", options.requests,
                          "Requests at once, of 8 MiB each (default: 32)"),
           1, kMostRequests)
      ->type_name("N")
      ->group(kFarGroup);
}

FarPaths::FarPaths() {
  buckets() = std::make_unique<Buckets>();
}

FarPaths::~FarPaths() {
  buckets() = nullptr;
}

int FarPaths::run(const CLI::App& app, const Common& common, const std::function<int()>& body) {
  Buckets& urls = *buckets();
  refuse_other_urls(app);
  if (urls.is_empty()) return body();
  if (is_one_of_several(common.group_options)) {
    throw UsageError("s3:// and https:// are read by one process, not by several ranks")
        .with_hint(
            "start it without mpirun, srun or torchrun, or with --group none on one of them; "
            "ranks read a mounted bucket (rclone mount)");
  }
  BucketOptions options = options_given();
  options.max_memory = common.max_memory;
  {
    Progress progress;
    const InterruptGuard guard(progress);
    urls.open(options, ::getenv, is_interrupted);
  }
  int status = kDone;
  with_threads(default_threads(), [&] { status = body(); });
  if (!common.json) {
    note(app, common,
         traffic_text(urls.traffic(), urls.has_stores() ? "the object store" : "the web server"));
  }
  return status;
}

}  // namespace dsckpt::cli
