// Inputs and outputs at URLs, s3://BUCKET/PREFIX, as folders of stand-ins (bucket/buckets.h).
//
// Options declare with input_path() that they take a path to read, and with output_path() that they
// take the folder of an output. Their URLs become paths while arguments are parsed. The files
// appear there when FarPaths::run() calls its body.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "cli/options.h"
#include "exec/step_files.h"

namespace dsckpt::cli {

// Let `option` take URLs as well as paths. Other arguments decide what either_path() is.
CLI::Option* input_path(CLI::Option* option);
CLI::Option* output_path(CLI::Option* option);
CLI::Option* either_path(CLI::Option* option);
// Adds --s3-endpoint and related options, in a group of their own. add_common() calls it.
void add_far_options(CLI::App& app);

// The traffic so far, {"requests": N, "repeated": N, "bytes": N, "bytes_sent": N}; nullopt if no
// path is a URL.
std::optional<nlohmann::json> far_traffic_json();

// The local folders of the URLs among the arguments, as long as it lives. Only one at a time, made
// before any thread.
class FarPaths {
 public:
  FarPaths();
  ~FarPaths();
  FarPaths(const FarPaths&) = delete;
  FarPaths& operator=(const FarPaths&) = delete;

  // Makes the folders, calls `body` and returns its result. Uses as many threads as the stores take
  // requests at once. Prints the number of requests, as text. Without URLs it only calls `body`.
  // Throws the errors of Buckets::open() and `body`. Only rank 0 of a launcher and share 0 list the
  // objects: the others take them from its plan.
  int run(const CLI::App& app, const Common& common, const std::function<int()>& body);
};

// In such a body: opens the object stores and web servers of a plan, if its files are there. The
// settings are the planner's, and the credentials are this process's. Throws as Buckets::open().
void open_stores_of(const StepPlan& plan, const Common& common);

}  // namespace dsckpt::cli
