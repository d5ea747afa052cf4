// Verification: the common state of verify()'s checks: the files, the report so far, and the known
// defects.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/keyed_hash.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/find/tag_folder.h"
#include "checkpoint/shard.h"
#include "dsckpt/error.h"
#include "format/safetensors.h"
#include "format/zip.h"
#include "inspect/ask.h"
#include "inspect/verify/findings.h"

namespace dsckpt {

// A file, as far as it can be opened.
struct CheckedFile {
  std::filesystem::path path;
  std::string display;
  FileId id = ~FileId{0};         // until it is opened: no file's
  std::optional<ShardName> name;  // of a shard; kind universal of those below zero/
  std::optional<ZipReader> zip;
  std::optional<Shard> shard;  // a file of torch.save that is whole
  std::optional<SafetensorsFile> safetensors;
  // For an archive in a file of torch.distributed.checkpoint: the value that it belongs to, and its
  // place. Only its `zip` is opened.
  std::string part;
  Extent extent = {};
  // Files that do not belong to the checkpoint, such as those of a rank that cannot exist.
  bool left_out = false;
  // A reported defect makes everything else in the file doubtful.
  bool suspect = false;

  bool whole() const {
    return shard.has_value() || safetensors.has_value() || (!part.empty() && zip.has_value());
  }
  // A record of it, by a name that no other record of the file has.
  std::string member(const ZipEntry& entry) const {
    return part.empty() ? std::string(entry.name) : part + " (" + std::string(entry.name) + ")";
  }
  // True if it can be compared with others.
  bool usable() const { return whole() && !left_out && !suspect; }
  std::optional<FindingRank> rank() const;
};

// Elements of one read: as many as fit the caches of a core.
inline constexpr int64_t kPieceElements = 16 << 10;

class Verification {
 public:
  Verification(InputFiles& opened, const VerifyOptions& wanted, Progress& shown)
      : inputs(opened), options(wanted), progress(shown) {}

  InputFiles& inputs;
  const VerifyOptions& options;
  std::shared_ptr<Folders> folders = std::make_shared<Folders>();  // that are listed
  Progress& progress;
  VerifyReport report;
  // For checkpoints: the folder, without the files that check_ranks leaves out.
  TagFolder folder;
  // TagFolder::model, or for weights the one that is read of several in the folder.
  std::string model = {};
  // By kind, mp rank and dp rank; for weights by name.
  std::vector<CheckedFile> files;
  // After open_checkpoint, if it could be opened.
  std::unique_ptr<Checkpoint> checkpoint;

  Reading reading() const { return {options.threads, progress, options.readers}; }

  // Any thread.
  void add(Finding finding);
  // The finding's place is that of the error, in `file`.
  void add(Check check, const CheckedFile& file, const Error& error);
  void add(Check check, const CheckedFile& file, std::string member, std::string message);
  // The finding is for the file that the error names.
  void add(Check check, const Error& error);
  // Records why a check was not made, or not everywhere. `done`: it was made elsewhere.
  void skip(Check check, std::string why, bool done = false);
  // Runs `body`. An Error becomes a finding, but an UnsupportedError becomes the check's note. An
  // InterruptedError is passed on.
  template <typename Body>
  void attempt(Check check, CheckedFile& file, Body&& body) {
    try {
      body();
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::interrupted) throw;
      if (error.kind() == ErrorKind::unsupported && check != Check::unreadable) {
        return skip(check,
                    "not all of it: " + std::string(error.within({.file = file.display}).what()),
                    true);
      }
      add(check, file, error);
      file.suspect = true;
    }
  }
  void stop_if_cancelled() const {
    if (progress.cancelled) throw InterruptedError();
  }

  bool has(Check check) const;
  // True if anything but its checksums was reported for the file.
  bool is_reported(const std::string& display) const;
  // The usable files of one kind.
  std::vector<CheckedFile*> of_kind(ShardName::Kind kind);
  // The usable files of one kind and mp rank.
  std::vector<CheckedFile*> of_kind(ShardName::Kind kind, uint32_t mp_rank);
  // The opened file of that id. Any thread.
  CheckedFile* file_of(FileId id);
  // True if bytes of `source` lie in records whose CRC32 is wrong, or in suspect files.
  bool is_doubtful(const TensorSource& source);
  // The record that holds byte `offset` of the file, or "".
  std::string record_at(FileId file, uint64_t offset);

  // Sets the finding's file, rank, record and offset, if the place is known.
  void set_place(Finding& finding, const std::optional<Extent>& place);

  // Records whose CRC32 is wrong.
  void set_damaged(std::vector<Extent> records);
  bool has_damaged() const { return !damaged_.empty(); }

 private:
  bool is_damaged(FileId file, uint64_t offset) const;

  std::mutex mutex_;
  std::array<KeyedSet<std::string>, kCheckCount> whys_;  // what skip() was given
  std::vector<size_t> by_id_;                            // indices of files, the first of each id
  size_t indexed_ = 0;                                   // how many files there were
  // By file and offset, apart.
  std::vector<Extent> damaged_;
};

// The longest list of missing files: more help nobody, and a count may be made up.
inline constexpr size_t kMaxMissing = 4096;

// True if a model-states file has None for `module`, because its layers have files of their own.
bool is_of_pipeline(const Shard& model);
// True for a universal checkpoint of weights for any stage, from which a run starts
// (universal/start.h). One model-states file has the tensors, and those of stage 3 have none.
bool is_for_any_stage(Verification& v);

// The options with which the readers open the checkpoint. Throws UsageError for an invalid rule of
// the user's.
OpenOptions checkpoint_options(const Verification& v);

// The place of element `at` of a tensor: the file and the byte, in the first of several copies.
std::optional<Extent> place_of(const TensorSource& source, int64_t at);

// The result of `read`, or nothing if the data is valid, but not read by this library.
template <typename Read>
auto if_supported(Read&& read) -> std::optional<decltype(read())> {
  try {
    return read();
  } catch (const UnsupportedError&) {
    return std::nullopt;
  }
}

// For each of `count` things, the index of the first equal one. Compares each only with one of each
// kind that has the same `hash`: a number that is equal for equal things.
template <typename Hash, typename Equal>
std::vector<size_t> first_equals(size_t count, Hash&& hash, Equal&& equal) {
  std::vector<size_t> first(count);
  KeyedMap<uint64_t, std::vector<size_t>> kinds;
  for (size_t i = 0; i < count; ++i) {
    std::vector<size_t>& alike = kinds[hash(i)];
    const auto found =
        std::find_if(alike.begin(), alike.end(), [&](size_t kind) { return equal(i, kind); });
    first[i] = found == alike.end() ? i : *found;
    if (found == alike.end()) alike.push_back(i);
  }
  return first;
}

// The most frequent index in the result of first_equals, the first of equally frequent ones; 0 if
// it is empty.
size_t largest_kind(const std::vector<size_t>& first_equal);

// Runs `body(i)` for 0 <= i < count on all threads.
void for_each_index(size_t count, const std::function<void(size_t)>& body);

// The checks, in the order in which they are made; each adds its findings.

// files.cpp
void open_files(Verification& v);
void check_saved_names(Verification& v);
void check_records(Verification& v);
void check_tensors_in_files(Verification& v);

// ranks.cpp
void check_ranks(Verification& v);

// layers.cpp
void check_layer_files(Verification& v);

// saves.cpp
void check_model_files_agree(Verification& v);
void check_optim_files_agree(Verification& v);

// module.cpp
void check_module_shapes(Verification& v);

// layout.cpp
void check_flat_groups(Verification& v);
void check_padding(Verification& v);
void open_checkpoint(Verification& v);

// offloaded.cpp
void check_swap_files(Verification& v);

// rounding.cpp
void check_rounding(Verification& v);

// replicas.cpp
void check_module_replicas(Verification& v);
void check_same_tensors(Verification& v);

// finite.cpp
void check_finite(Verification& v);

// touched.cpp
// Fills in Finding::tensors for findings about records.
void name_touched(Verification& v);

// universal.cpp
void check_universal(Verification& v);

// dcp.cpp
void open_dcp_files(Verification& v);

// weights.cpp
void check_weights(Verification& v);

}  // namespace dsckpt
