// Inputs and outputs that are URLs, s3://BUCKET/PREFIX, as folders of stand-ins (bucket/buckets.h).
//
// An option that takes a path to read is said to be one with input_path(), and one that takes the
// folder of an output with output_path(). Their URLs become paths while arguments are parsed, and
// what is there is there once FarPaths::run() calls its body.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "cli/options.h"

namespace dsckpt::cli {

// Let `option` take URLs as well as paths.
CLI::Option* input_path(CLI::Option* option);
CLI::Option* output_path(CLI::Option* option);
// Adds --s3-endpoint and its like, in a group of their own. add_common() does.
void add_far_options(CLI::App& app);

// {"requests": N, "repeated": N, "bytes": N, "bytes_sent": N} until now; nullopt where no path is a
// URL.
std::optional<nlohmann::json> far_traffic_json();

// What the URLs among the arguments stand for, while it lives. One at a time, before any thread.
class FarPaths {
 public:
  FarPaths();
  ~FarPaths();
  FarPaths(const FarPaths&) = delete;
  FarPaths& operator=(const FarPaths&) = delete;

  // What `body` returns, with all of them there, and as many threads as they take requests at once.
  // Says, as text, how many requests it took. Without URLs it only calls it.
  // Throws what Buckets::open() and `body` throw, and UsageError if a launcher has started several
  // ranks.
  int run(const CLI::App& app, const Common& common, const std::function<int()>& body);
};

}  // namespace dsckpt::cli
