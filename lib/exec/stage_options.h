// StageOptions: how a StagedOutput writes and commits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "dsckpt/run.h"
#include "io/output_file.h"

namespace dsckpt {

struct JobIdentity;

struct StageOptions {
  bool force = false;  // replace files that exist
  // fsync files and folders, or if they are many their file system (syncfs), before and after the
  // renames.
  bool durable = false;
  // The output folder is the plan's files and nothing else: what is there is removed, which takes
  // `force`, too.
  bool whole_folder = false;
  // Of another folder that has its name by the time of the commit, such as another run's output:
  // whether the path of a file's content there may be replaced. Empty: none may.
  std::function<bool(const std::filesystem::path&)> may_replace = {};
  // Write large files past the page cache (OutputOptions::direct).
  bool direct = false;
  // The longest write through the page cache (OutputOptions::write_bytes).
  uint64_t write_bytes = OutputOptions().write_bytes;
  // Of the staging folder, and so of all files in it, whatever becomes their name; `bytes` not 0.
  std::optional<Striping> stripe = {};
  // Other processes write into the staging folder as well (place()).
  bool shared = false;
  // The outputs that are packable (frame_cuts.h) are called PATH.dspack, and their sizes are not
  // those of the plan: a PackedOutput writes them.
  bool packed = false;
  // Of a run that another one can go on with, or that goes on with another one; else nullptr. Must
  // outlive the StagedOutput.
  const JobIdentity* job = nullptr;
  // With `job`: only to go on. What another run has committed meanwhile is not begun anew.
  bool only_goes_on = false;
};

}  // namespace dsckpt
