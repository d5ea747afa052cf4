#include "cli/far_paths.h"

#include <cstdlib>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/launch.h"
#include "base/text.h"
#include "bucket/bucket_url.h"
#include "bucket/buckets.h"
#include "cli/cli.h"
#include "cli/interrupt.h"
#include "cli/messages.h"
#include "cli/option_facts.h"
#include "dsckpt/error.h"
#include "exec/workers.h"

namespace dsckpt::cli {
namespace {

constexpr const char* kFarGroup = "Object stores (s3://BUCKET/PREFIX)";
constexpr int kMostRequests = 256;

BucketOptions& options_given() {
  static BucketOptions options;
  return options;
}

// The buckets of the FarPaths object that exists.
std::unique_ptr<Buckets>& buckets() {
  static std::unique_ptr<Buckets> buckets;
  return buckets;
}

// CLI11 passes the typed text, and takes the path in its place.
CLI::Option* take_urls(CLI::Option* option, BucketUse use) {
  const auto to_place = [use](std::string& text) {
    if (is_url(text) && buckets() != nullptr) text = buckets()->place_of(text, use).string();
    return std::string();
  };
  return some_path(option)->transform(CLI::Validator(to_place, "", "far_path"));
}

std::optional<Launch> launch_of(const MeetingOptions& options) {
  return options.alone ? std::nullopt : find_launch(::getenv);
}

// Refuses URLs in options that are neither an input nor an output.
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

void open(Buckets& urls, BucketOptions options, const Common& common) {
  options.max_memory = common.max_memory;
  urls.open(options, ::getenv, is_interrupted);
}

// The options of add_far_options() among the words of a command.
BucketOptions options_in(const std::vector<std::string>& words) {
  BucketOptions options;
  const auto take = [](const std::string& word, std::string_view name,
                       const std::function<void(const std::string&)>& set) {
    if (word.starts_with(name)) set(word.substr(name.size()));
  };
  for (const std::string& word : words) {
    if (word == "--") break;
    take(word, "--s3-endpoint=", [&](const std::string& value) { options.endpoint = value; });
    take(word, "--s3-region=", [&](const std::string& value) { options.region = value; });
    take(word,
         "--s3-path-style=", [&](const std::string& value) { options.path_style = value == "on"; });
    take(word, "--s3-requests=", [&](const std::string& value) {
      options.requests = static_cast<unsigned>(std::stoul(value));
    });
    if (word == "--s3-unsigned") options.is_unsigned = true;
  }
  return options;
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

CLI::Option* either_path(CLI::Option* option) {
  return take_urls(option, BucketUse::either);
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

void open_stores_of(const StepPlan& plan, const Common& common) {
  std::set<std::string> sites;
  if (plan.job.place.far.part_bytes != 0) sites.insert(plan.job.place.target.string());
  for (const RankJob::Input& input : plan.job.inputs) sites.insert(input.site());
  sites.erase("");
  if (sites.empty()) return;
  for (const std::string& site : sites) static_cast<void>(buckets()->place_of(site));
  BucketOptions options = options_in(plan.by.words);
  options.lists = false;
  open(*buckets(), options, common);
}

int FarPaths::run(const CLI::App& app, const Common& common, const std::function<int()>& body) {
  Buckets& urls = *buckets();
  refuse_other_urls(app);
  if (urls.is_empty()) return body();
  const std::optional<Launch> launch = launch_of(common.meeting);
  {
    Progress progress;
    const InterruptGuard guard(progress);
    BucketOptions options = options_given();
    options.lists = !common.is_later_share && (!launch || launch->rank == 0);
    open(urls, options, common);
  }
  int status = kDone;
  with_threads(default_threads(), [&] { status = body(); });
  if (!common.json && (!launch || launch->rank == 0)) {
    note(app, common,
         traffic_text(urls.traffic(), urls.has_stores() ? "the object store" : "the web server"));
  }
  return status;
}

}  // namespace dsckpt::cli
