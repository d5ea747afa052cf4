// StagedFiles: the files that outputs are written to before they get their final names.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "exec/sink.h"
#include "io/folder.h"
#include "io/output_file.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// Of a run whose outputs are packed: whether this one is (frame_cuts.h). Its size is not the
// plan's.
bool is_stored_packed(const PlannedFile& file, bool packed);
// What a file is called below the output folder: PATH, or PATH.dspack if it is packed.
std::string stored_name(const PlannedFile& file, bool packed);

// How the outputs of a run are staged: what all of its ranks must know.
struct StagingPlace {
  std::filesystem::path path = {};      // the staging folder
  std::optional<Folder> folder = {};    // the same, where it is open already
  std::filesystem::path files_in = {};  // the folder of the files in it
  // Another one in it, for packed files that are not whole, if `are_there`: each attempt at one has
  // a name of its own there, since their bytes come in no order that others could go on with.
  std::filesystem::path attempts_in = {};
  std::filesystem::path target = {};  // where they will be, for messages
  bool packed = false;                // is_stored_packed()
  bool direct = false;  // large files are written past the page cache (OutputOptions::direct)
  // The longest write through the page cache.
  uint64_t write_bytes = OutputOptions().write_bytes;
  bool durable = false;  // each is synced (fsync) before it is closed
  // Files may be there already: others write them, too, or a run before has.
  bool are_there = false;

  // Whether its bytes are written past the page cache.
  bool is_direct(const PlannedFile& file) const;
  // The staging folder. Throws IoError, and UsageError if it is not this user's.
  Folder open() const;
};

// The outputs of `plan`, which must outlive this. A file is made at its first write and closed by
// finish(); after that one that is not packed may be written to again if `place.are_there`.
class StagedFiles : public Sink {
 public:
  // Throws what StagingPlace::open() throws.
  StagedFiles(const CopyPlan& plan, StagingPlace place);

  void write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) override;
  void finish(OutputId out) override;

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
