// StagedFiles: the files of outputs until they get their final names.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "exec/staging_sink.h"
#include "io/folder.h"
#include "io/output_file.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// True if the output is packed in a run that packs its outputs (frame_cuts.h). Its size then
// differs from the plan's.
bool is_stored_packed(const PlannedFile& file, bool packed);
// The path of a file below the output folder: PATH, or PATH.dspack if it is packed.
std::string stored_name(const PlannedFile& file, bool packed);

// The staging of a run's outputs: the facts that all its ranks need.
struct StagingPlace {
  std::filesystem::path path = {};      // the staging folder
  std::optional<Folder> folder = {};    // the same, where it is open already
  std::filesystem::path files_in = {};  // the folder of the files in it
  // A second subfolder, for incomplete packed files, if `are_there`. Each attempt at one has a name
  // of its own there, since its bytes come in no order that another process could continue.
  std::filesystem::path attempts_in = {};
  std::filesystem::path target = {};  // where they will be, for messages
  bool packed = false;                // is_stored_packed()
  bool direct = false;  // large files are written past the page cache (OutputOptions::direct)
  // The longest write through the page cache.
  uint64_t write_bytes = OutputOptions().write_bytes;
  bool durable = false;  // each is synced (fsync) before it is closed
  // True if files may exist already, because other processes write them or an earlier run did.
  bool are_there = false;
  // Outputs in an object store; `target` is the place that messages call so. Then files_in has what
  // is left for the commit, and what is said of files above does not matter.
  FarStaging far = {};

  // Without the open folder.
  static void fields(auto& codec, auto& self) {
    codec(self.path, self.files_in, self.attempts_in, self.target, self.packed, self.direct,
          self.write_bytes, self.durable, self.are_there, self.far);
  }

  // True if its bytes are written past the page cache.
  bool is_direct(const PlannedFile& file) const;
  // The staging folder. Throws IoError, and UsageError if it is not this user's.
  Folder open() const;
};

// The outputs of `plan`, which must outlive this. A file is created at its first write and closed
// by finish(). Afterwards, a file that is not packed may be written again if `place.are_there`.
class StagedFiles : public StagingSink {
 public:
  // Throws as StagingPlace::open().
  StagedFiles(const CopyPlan& plan, StagingPlace place);

  void write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) override;
  void finish(OutputId out) override;
  SentWork end() override { return {}; }

 private:
  struct File {
    std::mutex mutex;
    std::shared_ptr<OutputFile> open;    // only files in progress hold a descriptor
    std::filesystem::path attempt = {};  // its name until it is whole; "": it has its own
  };
  std::shared_ptr<OutputFile> file(OutputId out);
  void create(OutputId out, File& file) const;
  std::filesystem::path staged(OutputId out) const;  // in the folder
  std::string shown(OutputId out) const;

  const CopyPlan& plan_;
  const StagingPlace place_;
  const Folder folder_;
  std::deque<File> files_;
};

}  // namespace dsckpt
