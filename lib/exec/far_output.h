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
// A commit is not atomic, unlike a folder's: a listing during the commit shows some of the objects.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
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
#include "exec/output.h"
#include "io/far_store.h"
#include "io/mapped_bytes.h"
#include "plan/copy_plan.h"

namespace dsckpt {

struct FarOptions {
  bool force = false;         // replace objects that are there
  bool whole_folder = false;  // StageOptions::whole_folder
  bool packed = false;        // StageOptions::packed
  // The size of all parts but the last: far_part_bytes().
  uint64_t part_bytes = 0;
  uint64_t held_bytes = 64 << 20;   // of small outputs that are kept in memory, all together
  std::chrono::seconds beat{3600};  // after which the marker says again that the run lives
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

  void write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) override;
  bool wants_digests_early() const override { return true; }
  void finish(OutputId out) override;

  // The pointer's file is in the same bucket as the target.
  void commit(const Pointer& pointer, const CommitHelp& help) override;
  void give_up(bool forever = true) override;
  const std::vector<std::string>& notes() const override { return notes_; }

  // The name in messages: "s3://bucket/folder/file".
  std::string shown(OutputId out) const;

 private:
  struct Part {
    MappedBytes bytes = {};
    uint64_t filled = 0;
  };
  struct File {
    std::mutex mutex;
    std::string upload = {};                 // "": not begun
    std::vector<std::string> etags = {};     // of the parts that were sent
    std::map<uint64_t, uint32_t> crcs = {};  // of these, and of those of the upload before
    std::map<uint64_t, Part> parts = {};     // that are not complete; of one that is held, all
    bool is_held = false;
    bool is_in_doubt = false;  // nobody knows what came of publishing it
    bool is_published = false;
    std::string etag = {};  // then
    uint64_t size = 0;      // as it was sent
  };

  std::string path_of(const std::string& file) const;
  std::string own_path(OutputId out) const;
  std::vector<std::string> own_paths() const;
  std::string shown_as(const std::string& path) const;
  std::optional<std::string> before(const std::string& path) const;
  std::vector<std::string> other_forms(OutputId out) const;
  OutputId count() const { return static_cast<OutputId>(plan_.outputs().size()); }

  void look();
  void check_free() const;
  template <typename Wanted, typename Work>
  void for_each_output(Wanted&& is_wanted, Work&& work);

  // True if its size differs from the plan's.
  bool is_packed(OutputId out) const;
  uint64_t part_size(OutputId out, uint64_t number) const;
  void send(OutputId out, uint64_t number, std::span<const std::byte> bytes);
  std::string upload_of(OutputId out);

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
  std::deque<File> files_;                          // deque: they cannot move
  std::map<std::string, FarObject> existing_ = {};  // below the target, since prepare()
  // The objects that commit() removed; some may still be in `existing_`.
  std::set<std::string> gone_ = {};

  std::mutex rewriting_;

  std::mutex mutex_;                     // of what follows
  std::set<std::string> doubtful_ = {};  // paths that may have uploads that nobody knows of
  std::vector<std::string> notes_ = {};
  FarMarker marker_;
};

}  // namespace dsckpt
