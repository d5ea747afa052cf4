#include "ckpt_pack/keep/removal.h"

#include <cerrno>
#include <chrono>
#include <optional>
#include <system_error>
#include <thread>

#include "base/random.h"
#include "dsckpt/error.h"
#include "io/folder.h"

namespace dsckpt::pack {
namespace fs = std::filesystem;
namespace {

constexpr int kMostListings = 20;
constexpr std::chrono::milliseconds kBetweenListings{10};
const std::string kRemoving = ".dsckpt-keep-removing-";
const std::string kRemoved = ".dsckpt-keep-removed-";

std::string cannot_remove(const fs::path& path, int failed) {
  return path.string() + " cannot be removed: " + std::generic_category().message(failed);
}

// Removes the folder `name`, whose name shows that this was decided.
std::string remove_for_good(const Folder& run, const std::string& name) {
  const int failed = run.remove_all(name);
  return failed == 0 ? "" : cannot_remove(run.path() / name, failed);
}

// `removing` may hold one checkpoint. It is removed, or gets its name back. Returns a note, or "".
std::string decide(const RunFolder& run, const Folder& folder, const std::string& removing,
                   const MayRemove& may_remove) {
  const std::optional<Folder> holder = folder.own(removing, true);
  if (!holder) return "";
  for (const std::string& name : holder->names()) {
    std::optional<RunCheckpoint> found;
    // Files vanish during a listing if the training removes them too.
    for (int attempt = 0; !found && attempt < kMostListings; ++attempt) {
      if (attempt > 0) std::this_thread::sleep_for(kBetweenListings);
      found = RunFolder::files_in(holder->path() / name);
    }
    if (found && run.latest() != name && may_remove(*found)) continue;
    const int failed = holder->rename(name, folder, name);
    if (failed == 0) return name + " has changed and stays";
    return (holder->path() / name).string() +
           " has changed and stays there: " + std::generic_category().message(failed);
  }
  const std::string removed = kRemoved + removing.substr(kRemoving.size());
  const int failed = folder.rename(removing, folder, removed);
  if (failed != 0) return cannot_remove(holder->path(), failed);
  return remove_for_good(folder, removed);
}

}  // namespace

Removal remove_checkpoint(const RunFolder& run, const RunCheckpoint& checkpoint,
                          const MayRemove& may_remove) {
  const Folder folder = Folder::at(run.path());
  const std::string removing = kRemoving + std::to_string(random_number());
  const Folder holder = folder.make_own(removing);
  const int failed = folder.rename(checkpoint.name, holder, checkpoint.name);
  if (failed != 0) {
    folder.remove_folder(removing);
    // ENOENT: the training removed it.
    if (failed == ENOENT) return {};
    return {.note = cannot_remove(run.path() / checkpoint.name, failed)};
  }
  Removal removal{.note = decide(run, folder, removing, may_remove)};
  removal.done = removal.note.empty();
  folder.remove_folder(removing);
  return removal;
}

std::vector<std::string> end_removals(const RunFolder& run, const MayRemove& may_remove) {
  std::vector<std::string> notes;
  const Folder folder = Folder::at(run.path());
  for (const std::string& name : folder.names()) {
    std::string note;
    try {
      if (name.starts_with(kRemoved) && folder.own(name, true)) {
        note = remove_for_good(folder, name);
      } else if (name.starts_with(kRemoving)) {
        note = decide(run, folder, name, may_remove);
        folder.remove_folder(name);
      }
    } catch (const Error& error) {
      note = error.what();
    }
    if (!note.empty()) notes.push_back(note);
  }
  return notes;
}

}  // namespace dsckpt::pack
