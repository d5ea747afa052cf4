#include "io/far_files.h"

#include <sys/stat.h>

#include <mutex>
#include <utility>
#include <vector>

#include "base/file_time.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

struct Mount {
  fs::path folder;
  int machine;
  std::string name;
  std::shared_ptr<FarReader> reader;
};

struct Mounts {
  std::mutex mutex;
  std::vector<Mount> all;
};

Mounts& mounts() {
  static Mounts mounts;
  return mounts;
}

// The mount that `path` lies in, and its path there.
std::optional<std::pair<Mount, fs::path>> find(const fs::path& path) {
  Mounts& known = mounts();
  const std::lock_guard lock(known.mutex);
  for (const Mount& mount : known.all) {
    const std::string front = mount.folder.native() + "/";
    if (path.native().starts_with(front)) {
      return std::pair(mount, fs::path("/" + path.native().substr(front.size())));
    }
  }
  return std::nullopt;
}

}  // namespace

void mount_far(fs::path folder, int machine, std::string name, std::shared_ptr<FarReader> reader) {
  Mounts& known = mounts();
  const std::lock_guard lock(known.mutex);
  known.all.push_back({std::move(folder), machine, std::move(name), std::move(reader)});
}

void unmount_far(const fs::path& folder) {
  Mounts& known = mounts();
  const std::lock_guard lock(known.mutex);
  std::erase_if(known.all, [&](const Mount& mount) { return mount.folder == folder; });
}

bool has_far_files() {
  Mounts& known = mounts();
  const std::lock_guard lock(known.mutex);
  return !known.all.empty();
}

std::optional<FarFile> far_file(const fs::path& path) {
  const auto found = find(path);
  if (!found) return std::nullopt;
  struct stat stand_in {};
  if (::stat(path.c_str(), &stand_in) != 0) return std::nullopt;
  const auto& [mount, there] = *found;
  return FarFile{mount.reader, mount.machine, there, static_cast<uint64_t>(stand_in.st_size),
                 modified_ns(stand_in)};
}

bool is_far(const fs::path& path) {
  return find(path).has_value();
}

std::string shown_path(const fs::path& path) {
  const auto found = find(path);
  return found ? found->first.name + ":" + found->second.string() : path.string();
}

}  // namespace dsckpt
