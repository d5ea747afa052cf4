// Where the output of a run goes, a folder or an object store, and how it is read and written
// there.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "dsckpt/run.h"
#include "exec/far_output.h"
#include "exec/io_choice.h"
#include "exec/output.h"
#include "io/far_files.h"
#include "job/job_impl.h"
#include "job/sharing.h"

namespace dsckpt {

// The folder that is written for `output`. If the output is whole, links are followed.
std::filesystem::path target_of(const Job::Impl& job, const std::filesystem::path& output);

// The place of an output in an object store, or nullopt for a folder. Throws UsageError for a
// place that is read only.
std::optional<FarPlace> store_of(const std::filesystem::path& output);
// Throws UsageError for options that an object store does not have.
void check_far(const Job::Impl& job, const FarPlace& place, const RunOptions& options);
FarOptions far_options(const Job::Impl& job, const RunOptions& options);

// How a run reads and writes; `io_of` as if the output were a folder.
IoChoice io_of(const Job::Impl& job, const std::filesystem::path& output,
               const RunOptions& options);
IoChoice io_to(const Job::Impl& job, const std::filesystem::path& output,
               const RunOptions& options);

// The output, before its preparation. The identity in `sharing` must outlive it.
std::unique_ptr<Output> output_of(const Job::Impl& job, const std::filesystem::path& output,
                                  const RunOptions& options, const IoChoice& io,
                                  const Sharing& sharing);

}  // namespace dsckpt
