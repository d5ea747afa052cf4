// Far files: remote files look like local ones.
//
// The local folder has stand-ins: files of the same names, sizes and times, so that listing it
// shows the remote files. A StoredFile that is opened on a stand-in reads the content through a
// FarReader.
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

// The reads that a run makes of a reader's files, in steps.
struct FarStep {
  uint64_t number = 0;               // rises from step to step
  std::vector<Extent> extents = {};  // in the order of the reads
};
struct FarSteps {
  std::vector<std::filesystem::path> files = {};  // by FileId: their remote paths
  uint64_t bytes = 0;                             // of all steps, about
  uint64_t most = 0;  // bytes that are read before they are needed; 0: any
  // Gets the next step; false if there is none. One thread at a time, as long as the FarReadAhead
  // lives.
  std::function<bool(FarStep&)> next = {};
};

// Reads files ahead of their use, as long as it lives. Any thread.
class FarReadAhead {
 public:
  virtual ~FarReadAhead() = default;
  // Called before anything of the step is read.
  virtual void begin(uint64_t step) = 0;
  // Called when no more of the step will be read.
  virtual void end(uint64_t step) = 0;
};

struct FarFile;

class FarReader {
 public:
  virtual ~FarReader() = default;
  // Fills `out` from `offset` of the remote file `path`. Any thread. Throws IoError, also if the
  // file has another size or time.
  virtual void read_at(const std::filesystem::path& path, uint64_t size, int64_t modified,
                       uint64_t offset, std::span<std::byte> out) = 0;
  // FarFile::version of the remote file `path`.
  virtual std::string version(const std::filesystem::path& path) const;
  // Makes a file known that another process has listed. Any thread.
  virtual void know(const FarFile& file);
  // The number of parallel reads that keep it busy; 0: as many as a disk.
  virtual unsigned requests() const { return 0; }
  // Starts to read ahead, in the order of the steps. read_at() then waits for bytes that are on
  // their way; errors of their read are thrown there. The result is nullptr if it does not read
  // ahead.
  virtual std::unique_ptr<FarReadAhead> read_ahead(FarSteps) { return nullptr; }
};

// The machine of files in an object store, which lie on no machine.
inline constexpr int kNoMachine = -1;

// A far file.
struct FarFile {
  std::shared_ptr<FarReader> reader = {};
  int machine = 0;                  // its meaning is up to the code that mounted it
  std::filesystem::path path = {};  // there
  uint64_t size = 0;
  int64_t modified = 0;      // nanoseconds since the epoch
  std::string version = {};  // which no other content of that path has; "": none is known
};

// Folders of far files in this process. Any thread.
//
// Mounts the files of `machine` below / in `folder`, whose path is absolute and has no links.
// Messages call them "NAME/path". `store`: the place for outputs in the folder; nullptr: there are
// none.
void mount_far(std::filesystem::path folder, int machine, std::string name,
               std::shared_ptr<FarReader> reader, std::shared_ptr<FarStore> store = nullptr);
void unmount_far(const std::filesystem::path& folder);
bool has_far_files();
// The largest requests() of the readers; 0 without readers.
unsigned far_requests();

// Makes a stand-in, with nothing but a size and a time (nanoseconds since the epoch). Throws
// IoError.
void make_stand_in(const std::filesystem::path& path, uint64_t size, int64_t modified);

// The far file that a stand-in represents; nothing for any other path.
std::optional<FarFile> far_file(const std::filesystem::path& path);
// True for a path in a folder of far files.
bool is_far(const std::filesystem::path& path);
// The remote place of an output folder; nothing for any other path, or without a store.
std::optional<FarPlace> far_place(const std::filesystem::path& path);
// The place that messages call `name`, "s3://bucket/folder". Throws UsageError for a store that
// this process has not opened.
FarPlace far_place_called(const std::string& name);
// The far file that shown_path() calls `name`, "s3://bucket/folder/file", as another process has
// listed it. Throws UsageError for a store or server that this process has not opened.
FarFile far_file_called(const std::string& name, uint64_t size, int64_t modified,
                        std::string version);
// The path in messages: "n2:/local/ckpt" for a stand-in, else the path itself.
std::string shown_path(const std::filesystem::path& path);
// `text` with shown_path() instead of the paths of stand-ins in it.
std::string shown_text(std::string text);

}  // namespace dsckpt
