// From a job to files.
#pragma once

#include <filesystem>

#include "dsckpt/run.h"
#include "job/job_impl.h"

namespace dsckpt {

// run() of dsckpt/run.h, watched and stopped through `progress`, into an `output` that has passed
// check_place().
RunStats run(const Job& job, const std::filesystem::path& output, const RunOptions& options,
             Progress& progress);

}  // namespace dsckpt
