#include "job/output_place.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "exec/commit.h"
#include "exec/staged_output.h"
#include "exec/step_files.h"
#include "io/file_system.h"
#include "job/place.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

std::optional<Striping> striping_of(const RunOptions& options, const IoChoice& io) {
  std::optional<Striping> striping = options.stripe;
  if (striping && striping->bytes == 0) striping->bytes = io.cut_bytes;
  return striping;
}

// The outputs that a plan for an object store has begun.
std::optional<FarStaging> begun_in(const fs::path& planned_in) {
  const std::optional<Resumable> found = find_resumable(planned_in, false);
  if (!found || !has_plan(found->folder)) return std::nullopt;
  return load_plan(found->folder).job.place.far;
}

// Each thread waits for one request with a part in memory, beside which units are short.
IoChoice far_io(const Job::Impl& job, const FarPlace& place, unsigned threads) {
  IoChoice io;
  io.unit_bytes = 512 << 10;
  io.cut_bytes = far_part_bytes(job.plan);
  io.threads = threads != 0 ? threads : std::max(place.store->requests(), far_requests());
  // Files that are not split have long parts.
  const uint64_t threads_of_short_parts = io.threads * kShortestFarPart / far_part_bytes(job.plan);
  io.threads = static_cast<unsigned>(std::max<uint64_t>(threads_of_short_parts, 1));
  return io;
}

}  // namespace

fs::path target_of(const Job::Impl& job, const fs::path& output) {
  std::error_code ignored;
  // A link to nothing is reported by the check of the output.
  const bool leads_nowhere =
      fs::is_symlink(fs::symlink_status(output, ignored)) && !fs::exists(output, ignored);
  return job.place.whole && !leads_nowhere ? resolved_path(output) : output;
}

std::optional<FarPlace> store_of(const fs::path& output) {
  std::optional<FarPlace> place = far_place(output);
  if (place || !is_far(output)) return place;
  throw UsageError(shown_path(output) + ": cannot be written to")
      .with_hint("outputs go to a folder, or to s3://BUCKET/PREFIX");
}

void check_far(const Job::Impl& job, const FarPlace& place, const RunOptions& options) {
  const std::string name = place.name + (place.path.empty() ? "" : "/" + place.path);
  if (options.resume) {
    throw UsageError(name + ": several ranks can resume only in folders")
        .with_hint(
            "give each process --share I/N and --plan-in DIR: the same command resumes those");
  }
  if (options.stripe) throw UsageError(name + ": --stripe is for folders on Lustre");
  if (!job.place.pointer.empty() && place.path.empty()) {
    throw UsageError(name + ": is not a folder that " + job.place.pointer + " can name")
        .with_hint("give a prefix: " + name + "/universal");
  }
}

FarOptions far_options(const Job::Impl& job, const RunOptions& options) {
  return {.force = options.force,
          .whole_folder = job.place.whole,
          .packed = options.pack.has_value(),
          .part_bytes = far_part_bytes(job.plan)};
}

IoChoice io_of(const Job::Impl& job, const fs::path& output, const RunOptions& options) {
  IoChoice io = choose_io(options.io, job.plan, *job.inputs,
                          file_systems(*job.inputs, target_of(job, output)), options.durable,
                          options.pack.has_value(), options.threads);
  if (options.stripe) io.cut_bytes = std::max(io.cut_bytes, options.stripe->bytes);
  return io;
}

IoChoice io_to(const Job::Impl& job, const fs::path& output, const RunOptions& options) {
  const std::optional<FarPlace> far = store_of(output);
  return far ? far_io(job, *far, options.threads) : io_of(job, output, options);
}

std::unique_ptr<Output> output_of(const Job::Impl& job, const fs::path& output,
                                  const RunOptions& options, const IoChoice& io,
                                  const Sharing& sharing) {
  if (const std::optional<FarPlace> place = store_of(output)) {
    FarOptions far = far_options(job, options);
    far.here = output;
    far.job = sharing.identity;
    if (sharing.in_steps) {
      far.folder = sharing.planned_in;
      far.begun = begun_in(sharing.planned_in);
    } else if (sharing.others != nullptr) {
      far.folder = sharing.others->meeting.make_folder().path();
    }
    return std::make_unique<FarOutput>(job.plan, *place, std::move(far));
  }
  return std::make_unique<StagedOutput>(job.plan, target_of(job, output),
                                        StageOptions{.force = options.force,
                                                     .durable = options.durable,
                                                     .whole_folder = job.place.whole,
                                                     .may_replace = job.place.is_ours,
                                                     .direct = io.direct,
                                                     .write_bytes = io.write_bytes,
                                                     .stripe = striping_of(options, io),
                                                     .shared = sharing.is_shared(),
                                                     .packed = options.pack.has_value(),
                                                     .job = sharing.identity,
                                                     .check = sharing.check,
                                                     .only_goes_on = sharing.only_goes_on});
}

}  // namespace dsckpt
