#include "job/run_plan.h"

#include <algorithm>
#include <system_error>

#include "exec/packed_output.h"
#include "io/content_name.h"

namespace dsckpt {
namespace fs = std::filesystem;

std::vector<PlannedInput> planned_inputs(const InputFiles& inputs) {
  std::vector<PlannedInput> planned;
  for (FileId id = 0; id < inputs.size(); ++id) {
    planned.push_back({inputs[id].display(), inputs[id].size()});
  }
  return planned;
}

void check_output_place(const Checkpoint& checkpoint, const fs::path& output) {
  std::error_code failed;
  const fs::path target = fs::weakly_canonical(fs::absolute(output), failed);
  std::vector<fs::path> folders = checkpoint.other_roots();
  folders.push_back(checkpoint.tag_folder());
  for (const fs::path& folder : folders) {
    const fs::path shards = fs::weakly_canonical(folder, failed);
    const auto [end, ignored] =
        std::mismatch(shards.begin(), shards.end(), target.begin(), target.end());
    if (end != shards.end()) continue;
    throw std::move(UsageError(output.string() + ": lies inside the folder of the shards"))
        .with_hint("give a folder outside of " + folder.string());
  }
}

std::string output_tag(const Checkpoint& checkpoint) {
  fs::path normal = fs::path(checkpoint.facts().tag).lexically_normal();
  if (!normal.has_filename()) normal = normal.parent_path();
  std::string tag = normal.string();
  const bool inside = normal.is_relative() && !tag.empty() && *normal.begin() != "..";
  if (!inside || tag == "latest" || tag == "latest_universal" || tag == ".") {
    throw UsageError("the tag '" + tag + "' does not name a folder below the output");
  }
  return tag;
}

namespace {

// Throws for a file in `output` that would be lost.
void check_only_ours(const fs::path& output, const std::function<bool(const fs::path&)>& is_ours) {
  std::error_code failed;
  fs::recursive_directory_iterator it(output, failed);
  for (const fs::recursive_directory_iterator end; !failed && it != end; it.increment(failed)) {
    if (it->is_directory(failed) && !it->is_symlink(failed)) continue;
    const fs::path path = it->path().lexically_relative(output);
    if (is_ours(content_path(path))) continue;
    throw UsageError(output.string() + ": is not replaced, since it holds " + path.string() +
                     ", which would be lost");
  }
  if (failed) throw IoError({.file = output.string()}, "cannot list", failed.value());
}

}  // namespace

void check_folder_place(const Checkpoint& checkpoint, const fs::path& output, bool force,
                        const std::string& tool,
                        const std::function<bool(const fs::path&)>& is_ours) {
  if (output.empty()) throw UsageError("the output folder has no name");
  check_output_place(checkpoint, output);
  std::error_code failed;
  if (!fs::exists(output, failed)) return;
  if (!fs::is_directory(output, failed)) throw UsageError(output.string() + ": is not a folder");
  if (fs::is_empty(output, failed)) return;
  const fs::path shards = fs::weakly_canonical(checkpoint.tag_folder(), failed);
  const fs::path target = fs::weakly_canonical(fs::absolute(output), failed);
  if (std::mismatch(target.begin(), target.end(), shards.begin(), shards.end()).first ==
      target.end()) {
    throw UsageError(output.string() + ": holds the checkpoint itself");
  }
  if (!force) {
    throw std::move(UsageError(output.string() + ": exists already"))
        .with_hint("--force replaces what " + tool + " wrote there before");
  }
  check_only_ours(output, is_ours);
}

UnsupportedError unassigned_states(const Checkpoint& checkpoint) {
  if (checkpoint.facts().stripped) {
    return UnsupportedError({.file = checkpoint.tag_folder().string()},
                            "was stripped to its weights by ckpt-pack strip: it has no optimizer "
                            "states");
  }
  return UnsupportedError(
      {.file = checkpoint.model_files().front().path.string(), .member = "optimizer.state"},
      "has no names, and the shapes do not tell which parameter each state belongs to");
}

ExecStats run_plan(const CopyPlan& plan, const InputFiles& inputs, std::vector<InputRecord> records,
                   const fs::path& output, Progress& progress, const RunOptions& options) {
  const IoChoice io = choose_io(options.io, plan, inputs, options.stage.durable,
                                options.pack.has_value(), options.threads);
  StageOptions stage = options.stage;
  stage.direct = io.direct;
  stage.packed = options.pack.has_value();
  StagedOutput staged(plan, output, stage);
  std::optional<PackedOutput> packed;
  if (options.pack) packed.emplace(plan, staged, *options.pack, options.sha256);
  ExecOptions exec;
  exec.threads = io.threads;
  exec.unit_bytes = io.unit_bytes;
  exec.records = std::move(records);
  exec.check_all_records = options.verify;
  ExecStats stats =
      execute(plan, inputs, packed ? static_cast<Sink&>(*packed) : staged, progress, exec);
  if (packed) stats.bytes_stored = packed->bytes_stored();
  staged.commit();
  return stats;
}

}  // namespace dsckpt
