// Far files: files on disks of other machines, as if they lay in a folder here.
//
// The folder has stand-ins: files of the same names, sizes and times, so that whoever lists it sees
// what is there. What they hold is read by a FarReader, wherever a StoredFile is opened.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/extent.h"
#include "io/far_store.h"

namespace dsckpt {

// What a run reads of a reader's files, in steps.
struct FarStep {
  uint64_t number = 0;               // rises from step to step
  std::vector<Extent> extents = {};  // in the order in which they are read
};
struct FarSteps {
  std::vector<std::filesystem::path> files = {};  // by FileId: what they are called there
  uint64_t bytes = 0;                             // of all steps, about
  uint64_t most = 0;  // bytes that are read before they are needed; 0: any
  // The next step; false: there is none. One thread at a time, as long as the FarReadAhead lives.
  std::function<bool(FarStep&)> next = {};
};

// Files that are read before they are needed, as long as it lives. Any thread.
class FarReadAhead {
 public:
  virtual ~FarReadAhead() = default;
  // Before anything of the step is read.
  virtual void begin(uint64_t step) = 0;
  // When nothing more of it will be.
  virtual void end(uint64_t step) = 0;
};

class FarReader {
 public:
  virtual ~FarReader() = default;
  // Fills `out` from `offset` of the file that is called `path` there. Any thread. Throws IoError,
  // also for a file of another size or time.
  virtual void read_at(const std::filesystem::path& path, uint64_t size, int64_t modified,
                       uint64_t offset, std::span<std::byte> out) = 0;
  // How many reads at once it takes to keep it busy; 0: as many as a disk.
  virtual unsigned requests() const { return 0; }
  // From now on reads ahead, in the order of the steps; read_at() then waits for what is on its
  // way, and throws what came of it. nullptr: it does not.
  virtual std::unique_ptr<FarReadAhead> read_ahead(FarSteps) { return nullptr; }
};

// The machine of what lies on none: of an object store.
inline constexpr int kNoMachine = -1;

// One of them.
struct FarFile {
  std::shared_ptr<FarReader> reader = {};
  int machine = 0;                  // whoever mounted it decides what it means
  std::filesystem::path path = {};  // there
  uint64_t size = 0;
  int64_t modified = 0;  // nanoseconds since the epoch
};

// Folders whose files are far ones, of this process. Any thread.
//
// From now on what lies in `folder`, which is absolute and has no links in its path, are the files
// of `machine` below /, and messages call them "NAME/path". `store`: where outputs in it are
// written; nullptr: none are.
void mount_far(std::filesystem::path folder, int machine, std::string name,
               std::shared_ptr<FarReader> reader, std::shared_ptr<FarStore> store = nullptr);
void unmount_far(const std::filesystem::path& folder);
bool has_far_files();
// The most that their readers say; 0 where there are none.
unsigned far_requests();

// A stand-in: nothing but its size and time, which is nanoseconds since the epoch. Throws IoError.
void make_stand_in(const std::filesystem::path& path, uint64_t size, int64_t modified);

// Of a stand-in what it stands for; nothing of any other path.
std::optional<FarFile> far_file(const std::filesystem::path& path);
// Whether it lies in such a folder.
bool is_far(const std::filesystem::path& path);
// Where an output folder is that lies in one; nothing of any other path, or without a store.
std::optional<FarPlace> far_place(const std::filesystem::path& path);
// What messages call a path: "n2:/local/ckpt" of a stand-in, else the path itself.
std::string shown_path(const std::filesystem::path& path);
// `text` with all of them in it called so.
std::string shown_text(std::string text);

}  // namespace dsckpt
