// From a job to files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "dsckpt/run.h"
#include "exec/share_forecast.h"
#include "exec/step_files.h"
#include "job/job_impl.h"
#include "job/sharing.h"

namespace dsckpt {

// run() of dsckpt/run.h, watched and stopped through `progress`, into an `output` that has passed
// check_place(). With `others`, this is rank 0, and all ranks read and write. `check`: not
// called in object stores.
RunStats run(const Job& job, const std::filesystem::path& output, const RunOptions& options,
             Progress& progress, const OtherRanks* others = nullptr, const FolderCheck& check = {});

// The first step of such a run, after which any process may work (exec/step_work.h) and
// commit_planned() ends it. Refuses what other processes could not do.
// `by`: the command that calls commit_planned() with the same arguments. Throws what run() throws.
struct StepPlace {
  uint64_t portions = 0;                  // about so many; 0: as many as suit
  std::filesystem::path planned_in = {};  // the plan's folder, only if the output is in a store
};
Planned plan_steps(const Job& job, const std::filesystem::path& output, const RunOptions& options,
                   const PlannedBy& by, const StepPlace& place, Progress& progress);
// The last step: does what is left, and commits. Nothing if nothing is planned or left there.
std::optional<RunStats> commit_planned(const Job& job, const std::filesystem::path& output,
                                       const RunOptions& options,
                                       const std::filesystem::path& planned_in, Progress& progress);

// Tests if that run could begin, without writing a byte: throws its errors for the place. Returns
// what it would say of the space; "" if that suffices. With RunOptions::resume nothing is looked
// at.
std::string check_run(const Job& job, const std::filesystem::path& output,
                      const RunOptions& options);

// About what that run would take of object stores.
struct FarForecast {
  uint64_t requests_to_read = 0;
  uint64_t bytes_to_read = 0;
  uint64_t requests_to_write = 0;
  uint64_t bytes_to_write = 0;
};
// Nothing if neither an input nor the output is in one.
std::optional<FarForecast> far_forecast(const Job& job, const std::filesystem::path& output,
                                        const RunOptions& options);

// How so many ranks would share that run. Reads which records the inputs have, and throws what that
// throws.
ShareForecast forecast(const Job& job, const std::filesystem::path& output,
                       const RunOptions& options, int ranks);

}  // namespace dsckpt
