// StageOptions: options for the writing and the commit of a StagedOutput.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "dsckpt/run.h"
#include "io/folder.h"
#include "io/output_file.h"

namespace dsckpt {

struct JobIdentity;

struct StageOptions {
  bool force = false;  // replace files that exist
  // Sync files and folders (fsync) before and after the renames; many files are synced with their
  // file system (syncfs).
  bool durable = false;
  // The output folder holds only the plan's files: other files there are removed, which also needs
  // `force`.
  bool whole_folder = false;
  // Used if the output folder is another one by the time of the commit, such as another run's
  // output. True if the path of a file's content there may be replaced. Empty: never.
  std::function<bool(const std::filesystem::path&)> may_replace = {};
  // Write large files past the page cache (OutputOptions::direct).
  bool direct = false;
  // The longest write through the page cache (OutputOptions::write_bytes).
  uint64_t write_bytes = OutputOptions().write_bytes;
  // The striping of the staging folder, and so of all files in it, whatever their final names;
  // `bytes` is not 0.
  std::optional<Striping> stripe = {};
  // Other processes write into the staging folder as well (place()).
  bool shared = false;
  // Outputs that are packable (frame_cuts.h) are called PATH.dspack, and a PackedOutput writes
  // them. Their sizes differ from those in the plan.
  bool packed = false;
  // For a run that can be resumed, or that resumes another; else nullptr. It must outlive the
  // StagedOutput.
  const JobIdentity* job = nullptr;
  // Looks at the folder that the staging folder is in, before anything is written. If it throws,
  // nothing is left there.
  std::function<void(const Folder& folder)> check = {};
  // With `job`: only resume. If another run has committed meanwhile, do not start anew.
  bool only_goes_on = false;
};

}  // namespace dsckpt
