// FarOutput: output files in an object store (io/far_store.h).
//
// Protocol:
//
// (1) Check whether an object is in the way. Make a marker (far_marker.h) that says which process
// writes there, and remove left-overs of killed runs.
//
// (2) Cut every output into parts of one size. A part is sent as soon as it is complete and its
// digests are known. Small outputs stay in memory. Nothing is visible yet.
//
// (3) commit(): if objects are replaced, remove the last one first, the index that points at the
// others. Complete all others, on condition that nobody else has written there meanwhile. Remove
// the objects that they replace under another name. Read back. Complete the last one, then the
// pointer. An upload that the store wants anew is sent anew.
//
// (4) Remove the marker. Without a commit, or if it fails, abort all uploads and remove the new
// objects, even those that the store made without a reply. A replaced object cannot be restored,
// and the message says so. Objects that another live run may have begun stay.
//
// With FarOptions::folder, other processes send parts too (step_files.h): prepare() begins all
// uploads, and place() has them. take() returns the parts that others have sent or left in the
// folder: (3) begins with them. With FarOptions::job the folder is the user's, and a stop of any
// process costs only the parts that it was sending. A commit that fails or is killed leaves
// everything to the next one; remove_far() is for the user who wants none. An output whose upload
// is gone by then is sent anew. A commit completes the parts that it knows by their ETags, or the
// store refuses it: so a process that wakes up late changes nothing.
//
// A commit is not atomic, unlike a folder's: a listing during the commit shows some of the objects.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dsckpt/error.h"
#include "exec/far_marker.h"
#include "exec/far_parts.h"
#include "exec/output.h"
#include "exec/staging_owner.h"
#include "io/far_store.h"
#include "io/folder.h"
#include "plan/copy_plan.h"

namespace dsckpt {

struct JobIdentity;

struct FarOptions {
  bool force = false;         // replace objects that are there
  bool whole_folder = false;  // StageOptions::whole_folder
  bool packed = false;        // StageOptions::packed
  // The size of all parts but the last: far_part_bytes().
  uint64_t part_bytes = 0;
  uint64_t held_bytes = 64 << 20;   // of small outputs that are kept in memory, all together
  std::chrono::seconds beat{3600};  // after which the marker says again that the run lives
  std::filesystem::path here = {};  // the local folder of the outputs' stand-ins
  // A folder that other processes see: with `job`, one for a staging folder, which the user has
  // chosen; else one of this run. Empty: there are no others.
  std::filesystem::path folder = {};
  const JobIdentity* job = nullptr;  // StageOptions::job
  // The outputs as the resumed run has begun them; nothing: there is no such run.
  std::optional<FarStaging> begun = {};
};

// The smallest part that S3 allows: each thread has one in memory.
inline constexpr uint64_t kShortestFarPart = 5 << 20;
// The part size for that plan: kShortestFarPart, or the next power of two with which 10,000 parts
// suffice.
uint64_t far_part_bytes(const CopyPlan& plan);

// Memory besides the held outputs: one part for each thread. Parts that span the writes of several
// threads, or wait for digests, take another one for each thread.
class FarOutput : public Output {
 public:
  // The cost of sending the output, without repeated requests.
  struct Cost {
    uint64_t requests = 0;
    uint64_t bytes = 0;
  };

  // Does not access the store yet.
  FarOutput(const CopyPlan& plan, FarPlace target, FarOptions options);
  ~FarOutput() override;

  void prepare() override;
  std::string check() override;
  Cost cost() const;

  const Folder* folder() const override { return folder_ ? &*folder_ : nullptr; }
  StagingPlace place() const override;
  const std::vector<std::filesystem::path>& made_folders() const override { return made_folders_; }
  bool goes_on() const override { return options_.begun.has_value(); }
  bool is_written() const override { return is_written_; }
  bool keeps_what_is_written() const override { return false; }
  void take(const SentWork& work) override { parts_.take(work); }
  void sync() override {}  // what is sent is in the store
  ReadBack read_back() const override;
  void leave_run_before() override { leaves_run_before_ = true; }
  void hand_over() override;

  void write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) override {
    parts_.write_at(out, offset, bytes);
  }
  bool wants_digests_early() const override { return parts_.wants_digests_early(); }
  void finish(OutputId out) override { parts_.finish(out); }

  // The pointer's file is in the same bucket as the target.
  void commit(const Pointer& pointer, const CommitHelp& help) override;
  void give_up(bool forever = true) override;
  const std::vector<std::string>& notes() const override { return notes_; }

  // The name in messages: "s3://bucket/folder/file".
  std::string shown(OutputId out) const { return parts_.shown(out); }

 private:
  struct Object {
    bool is_in_doubt = false;  // it is unknown whether it was published
    bool is_published = false;
    std::string etag = {};  // then
    uint64_t size = 0;
    bool is_lost = false;  // its upload is gone
  };

  std::string path_of(const std::string& file) const;
  const std::string& own_path(OutputId out) const { return parts_.path(out); }
  std::vector<std::string> own_paths() const;
  std::vector<FarStaging::Object> objects_of_plan() const;
  bool is_kept() const { return options_.job != nullptr; }

  void make_folder();
  void take_up();
  FarStaging staging() const;
  void find_published();
  void find_lost();
  void remove_folder();
  std::string shown_as(const std::string& path) const;
  std::optional<std::string> before(const std::string& path) const;
  std::vector<std::string> other_forms(OutputId out) const;
  OutputId count() const { return static_cast<OutputId>(plan_.outputs().size()); }

  void look();
  void check_free() const;
  template <typename Wanted, typename Work>
  void for_each_output(Wanted&& is_wanted, Work&& work);

  void publish_everything(const Pointer& pointer, const CommitHelp& help);
  void publish_all(OutputId last, const CommitHelp& help);
  void publish(OutputId out, const CommitHelp& help);
  FarPublished try_to_publish(OutputId out);
  void remove_old(std::vector<std::string> paths);
  void stand_in(OutputId first, OutputId last);
  void put_pointer(const Pointer& pointer);
  std::optional<bool> is_there(OutputId out) const;
  [[noreturn]] void take_back(const Error& error);
  void abort_uploads();

  const CopyPlan& plan_;
  const FarPlace target_;
  const FarOptions options_;
  FarParts parts_;
  std::vector<Object> objects_;
  std::map<std::string, FarObject> existing_ = {};  // below the target, since prepare()
  // The objects that commit() removed; some may still be in `existing_`.
  std::set<std::string> gone_ = {};

  std::mutex rewriting_;

  std::mutex mutex_;  // guards what follows
  std::vector<std::string> notes_ = {};
  FarMarker marker_;

  std::optional<Folder> place_ = {};        // that a kept folder is in
  std::optional<Folder> folder_ = {};       // that others see
  std::string files_in_ = {};               // in it
  std::optional<StagingOwner> owner_ = {};  // of a kept one
  std::vector<std::filesystem::path> made_folders_ = {};
  bool is_written_ = false;
  bool leaves_run_before_ = false;
};

// Removes all that a plan has in the store: uploads, objects that its commits have made, and the
// marker. Throws as FarStore.
void remove_far(const FarPlace& target, const FarStaging& staging);

}  // namespace dsckpt
