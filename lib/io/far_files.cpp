#include "io/far_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <utility>
#include <vector>

#include "base/file_descriptor.h"
#include "base/file_time.h"
#include "dsckpt/error.h"
#include "io/folder.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

struct Mount {
  fs::path folder;
  int machine;
  std::string name;
  std::shared_ptr<FarReader> reader;
  std::shared_ptr<FarStore> store;
};

struct Mounts {
  std::mutex mutex;
  std::vector<Mount> all;
};

Mounts& mounts() {
  static Mounts mounts;
  return mounts;
}

// Returns the mount that holds `path`, and the path within it.
std::optional<std::pair<Mount, fs::path>> find(const fs::path& path) {
  Mounts& known = mounts();
  const std::lock_guard lock(known.mutex);
  for (const Mount& mount : known.all) {
    if (path == mount.folder) return std::pair(mount, fs::path("/"));
    const std::string front = mount.folder.native() + "/";
    if (path.native().starts_with(front)) {
      return std::pair(mount, fs::path("/" + path.native().substr(front.size())));
    }
  }
  return std::nullopt;
}

// Returns the first mount for which `is_meant`, that has the file or folder called `name`, and its
// path within it.
std::optional<std::pair<Mount, std::string>> find_called(
    const std::string& name, const std::function<bool(const Mount&)>& is_meant) {
  Mounts& known = mounts();
  const std::lock_guard lock(known.mutex);
  for (const Mount& mount : known.all) {
    if (!is_meant(mount)) continue;
    if (name == mount.name) return std::pair(mount, std::string());
    if (!name.starts_with(mount.name + "/")) continue;
    return std::pair(mount, name.substr(mount.name.size() + 1));
  }
  return std::nullopt;
}

constexpr const char* kWhoKnowsStores =
    "all processes need a program that knows object stores: --version lists s3";

}  // namespace

std::string FarReader::version(const fs::path&) const {
  return "";
}

void FarReader::know(const FarFile&) {}

void mount_far(fs::path folder, int machine, std::string name, std::shared_ptr<FarReader> reader,
               std::shared_ptr<FarStore> store) {
  Mounts& known = mounts();
  const std::lock_guard lock(known.mutex);
  known.all.push_back(
      {std::move(folder), machine, std::move(name), std::move(reader), std::move(store)});
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

unsigned far_requests() {
  Mounts& known = mounts();
  const std::lock_guard lock(known.mutex);
  unsigned most = 0;
  for (const Mount& mount : known.all) most = std::max(most, mount.reader->requests());
  return most;
}

void make_stand_in(const fs::path& path, uint64_t size, int64_t modified) {
  // Other users cannot open it: it seems to hold only zeros.
  const FileDescriptor file(create_temporary(path, 0200));
  if (!file) throw IoError({.file = path.string()}, "cannot create", errno);
  const timespec time{modified / 1'000'000'000, modified % 1'000'000'000};
  const timespec times[2] = {time, time};
  if (::ftruncate(file.get(), static_cast<off_t>(size)) != 0 ||
      ::futimens(file.get(), times) != 0) {
    throw IoError({.file = path.string()}, "cannot create", errno);
  }
}

std::optional<FarFile> far_file(const fs::path& path) {
  const auto found = find(path);
  if (!found) return std::nullopt;
  struct stat stand_in {};
  if (::stat(path.c_str(), &stand_in) != 0) return std::nullopt;
  const auto& [mount, there] = *found;
  return FarFile{.reader = mount.reader,
                 .machine = mount.machine,
                 .path = there,
                 .size = static_cast<uint64_t>(stand_in.st_size),
                 .modified = modified_ns(stand_in),
                 .version = mount.reader->version(there)};
}

bool is_far(const fs::path& path) {
  return find(path).has_value();
}

std::optional<FarPlace> far_place(const fs::path& path) {
  fs::path normal = fs::absolute(path).lexically_normal();
  if (!normal.has_filename()) normal = normal.parent_path();
  const auto found = find(normal);
  if (!found || found->first.store == nullptr) return std::nullopt;
  return FarPlace{found->first.store, found->second.relative_path().string(), found->first.name};
}

FarPlace far_place_called(const std::string& name) {
  const auto found = find_called(name, [](const Mount& mount) { return mount.store != nullptr; });
  if (!found) {
    throw UsageError(name + ": cannot be written to here").with_hint(kWhoKnowsStores);
  }
  return {found->first.store, found->second, found->first.name};
}

FarFile far_file_called(const std::string& name, uint64_t size, int64_t modified,
                        std::string version) {
  const auto found =
      find_called(name, [](const Mount& mount) { return mount.machine == kNoMachine; });
  if (!found) throw UsageError(name + ": cannot be read here").with_hint(kWhoKnowsStores);
  const FarFile file{.reader = found->first.reader,
                     .machine = kNoMachine,
                     .path = "/" + found->second,
                     .size = size,
                     .modified = modified,
                     .version = std::move(version)};
  file.reader->know(file);
  return file;
}

std::string shown_path(const fs::path& path) {
  const auto found = find(path);
  if (!found) return path.string();
  return found->first.name + (found->second == "/" ? "" : found->second.string());
}

std::string shown_text(std::string text) {
  Mounts& known = mounts();
  const std::lock_guard lock(known.mutex);
  for (const Mount& mount : known.all) {
    const std::string& folder = mount.folder.native();
    for (size_t at = 0; (at = text.find(folder, at)) != text.npos;) {
      text.replace(at, folder.size(), mount.name);
      at += mount.name.size();
    }
  }
  return text;
}

}  // namespace dsckpt
