#include "job/place.h"

#include <algorithm>
#include <system_error>

#include "dsckpt/error.h"
#include "exec/commit.h"
#include "exec/staging_owner.h"
#include "io/content_name.h"
#include "io/far_files.h"
#include "io/folder.h"
#include "job/links.h"
#include "job/source.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

// Returns the path without a slash at its end.
fs::path named(const fs::path& output) {
  const fs::path absolute = fs::absolute(output);
  return absolute.has_filename() ? absolute : absolute.parent_path();
}

void check_apart(const Place& place, const fs::path& output) {
  std::error_code failed;
  const fs::path target = fs::weakly_canonical(fs::absolute(output), failed);
  for (const auto& [path, what] : place.inputs) {
    const fs::path input = fs::weakly_canonical(fs::absolute(path), failed);
    const std::string name = output.string();
    if (lies_in(target, input)) {
      const std::string is = input == target ? ": is " : ": lies inside ";
      throw UsageError(name + is + what).with_hint("give a folder outside of " + path.string());
    }
    if (place.whole && lies_in(input, target)) {
      throw UsageError(name + ": holds " + what)
          .with_hint("give another: the output is made, and replaced, as a whole");
    }
  }
}

void check_pointer(const Place& place, const fs::path& output) {
  const std::string name = output.empty() ? "" : name_of(output);
  if (name.empty() || name == "." || name == ".." || name == place.pointer) {
    throw UsageError("'" + output.string() + "' does not name a folder that " + place.pointer +
                     " can name");
  }
  std::error_code failed;
  const fs::path pointer = pointer_file(place, output);
  if (fs::is_directory(pointer, failed)) {
    throw UsageError(pointer.string() + ": a folder has the name of an output file");
  }
}

bool is_staging(const fs::path& path) {
  return path.filename().string().starts_with(kStagingPrefix);
}

// Throws if `output` has a file that would be lost. `staging_too`: also checks leftovers of earlier
// runs.
void check_only_ours(const Place& place, const fs::path& output, bool staging_too) {
  std::error_code failed;
  fs::recursive_directory_iterator it(output, failed);
  for (const fs::recursive_directory_iterator end; !failed && it != end; it.increment(failed)) {
    if (!staging_too && is_staging(it->path())) {
      it.disable_recursion_pending();
      continue;
    }
    if (it->is_directory(failed) && !it->is_symlink(failed)) continue;
    const fs::path path = it->path().lexically_relative(output);
    if (place.is_ours(content_path(path))) continue;
    throw UsageError(output.string() + ": is not replaced, since it holds " + path.string() +
                     ", which " + place.foreign);
  }
  if (failed) throw IoError({.file = output.string()}, "cannot list", failed.value());
}

void check_replaceable(const Place& place, const fs::path& output, bool force, bool resume,
                       const fs::path& planned_in) {
  std::error_code failed;
  if (!fs::exists(output, failed)) return;
  if (!fs::is_directory(output, failed)) {
    throw UsageError(output.string() + ": is not a folder")
        .with_hint("the output must be a new folder; give another name");
  }
  // In an object store, leftovers of earlier runs are in the folder itself.
  const bool in_store = far_place(fs::absolute(output)).has_value();
  const fs::directory_iterator entries(output, failed);
  const bool is_free = std::all_of(begin(entries), end(entries), [&](const auto& entry) {
    return in_store && is_staging(entry.path());
  });
  if (!failed && is_free) return;
  if (!force && !(resume && can_go_on(planned_in.empty() ? resolved_path(output) : planned_in))) {
    throw UsageError(output.string() + ": exists already")
        .with_hint("--force replaces " + place.replaced);
  }
  check_only_ours(place, output, !resume && !in_store);
}

void check_alone(const Place& place, const fs::path& output) {
  const std::vector<std::string> others = place.others(output);
  if (others.empty()) return;
  const std::string more =
      others.size() == 1 ? "" : " and " + counted(others.size() - 1, "file") + " more";
  throw UsageError(output.string() + ": holds " + others.front() + more +
                   " of another run, which would be taken for a part of the output")
      .with_hint("give an empty folder, or --force, which writes beside " +
                 std::string(others.size() == 1 ? "it" : "them"));
}

Place::Input input_of(const Checkpoint& checkpoint) {
  const CheckpointFacts& facts = checkpoint.facts();
  const TagFolder& folder = checkpoint.folder();
  std::error_code failed;
  // A file that holds everything, and was given as such, may lie among anything else.
  const fs::path& path = folder.own();
  std::string what = fs::is_directory(path, failed) ? "the folder of " : "the file of ";
  what += facts.is_universal()   ? "the universal checkpoint"
          : facts.from_weights() ? "the weights"
          : facts.is_foreign()   ? "the checkpoint"
                                 : "the shards";
  return {path, what};
}

}  // namespace

Place place_beside(const Source& source) {
  const Checkpoint& checkpoint = *source->checkpoint;
  Place place;
  place.inputs = {input_of(checkpoint)};
  for (const fs::path& root : checkpoint.folder().other_roots) {
    place.inputs.push_back({root, "the folder of the shards"});
  }
  for (const AveragedCheckpoint& part : checkpoint.averaged()) {
    place.inputs.push_back(input_of(*part.checkpoint));
  }
  if (source->like) place.inputs.push_back(input_of(*source->like));
  if (const fs::path& weights = source->options.weights_from; !weights.empty()) {
    place.inputs.push_back({weights, "where the other weights are"});
  }
  return place;
}

void check_place(const Place& place, const fs::path& output, bool force, bool resume,
                 const fs::path& planned_in) {
  if (!place.pointer.empty()) check_pointer(place, output);
  if (output.empty()) throw UsageError("the output folder has no name");
  static_cast<void>(resolved_path(output));  // refuses another user's link before it is followed
  check_apart(place, output);
  if (place.is_ours) check_replaceable(place, output, force, resume, planned_in);
  if (place.others && !force) check_alone(place, output);
}

std::string name_of(const fs::path& output) {
  return named(output).filename().string();
}

fs::path pointer_file(const Place& place, const fs::path& output) {
  return named(output).parent_path() / place.pointer;
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

}  // namespace dsckpt
