// FarParts: the outputs of a plan, or of a part of it, on their way to an object store.
//
// An output is cut into parts of one size. A part is sent as soon as it is complete, for the
// output's upload. Short outputs are held: they stay in memory. Several processes may send parts of
// one upload. A process leaves its bytes of a part that others complete in a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "exec/sink.h"
#include "exec/staging_sink.h"
#include "io/far_store.h"
#include "io/folder.h"
#include "io/mapped_bytes.h"
#include "plan/copy_plan.h"

namespace dsckpt {

class FarParts : public Sink {
 public:
  struct Cut {
    uint64_t part_bytes = 0;  // of all parts but the last
    bool packed = false;      // StageOptions::packed
  };
  // The plan must outlive it. `objects`: by the plan's outputs. `on_sent` is called after each
  // part, by any thread.
  FarParts(const CopyPlan& plan, FarPlace target, Cut cut, std::vector<FarStaging::Object> objects,
           std::function<void()> on_sent);

  // Bytes of parts that others have sent are ignored.
  void write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) override;
  bool wants_digests_early() const override { return true; }
  void finish(OutputId out) override;

  const std::vector<FarStaging::Object>& objects() const { return objects_; }
  bool is_held(OutputId out) const { return objects_[out].is_held; }
  const std::string& path(OutputId out) const { return objects_[out].path; }
  // The name in messages: "s3://bucket/folder/file".
  std::string shown(OutputId out) const;

  // The upload of an output, which it begins if there is none. Any thread. Throws as FarStore.
  std::string upload_of(OutputId out);
  // Ends the upload without an object, if there is one. The output can be written again, from its
  // beginning.
  void end_upload(OutputId out);
  // Paths that may have uploads that nobody knows of.
  const std::set<std::string>& doubtful() const { return doubtful_; }

  // These when no thread writes. The bytes of a held output.
  std::span<const std::byte> held(OutputId out) const;
  // The ETags of its parts. Throws std::logic_error for an output with holes.
  std::vector<std::string> sent(OutputId out) const;
  uint64_t size(OutputId out) const;  // as it was sent
  // Frees what is kept of the output; more bytes of it are ignored.
  void forget(OutputId out);

  // Writes the bytes of incomplete parts into a new file in `folder`, and returns all that was
  // sent or left. Throws IoError.
  SentWork leave(const Folder& folder);
  // Takes over the work of another process.
  void take(const SentWork& work);
  // Completes and sends the parts that take() has left in `folder`. Throws IoError for a file that
  // is not as leave() has written it.
  void send_left(const Folder& folder);

 private:
  // Ranges of bytes, [begin, end), apart from each other.
  class Ranges {
   public:
    void add(uint64_t begin, uint64_t end);
    uint64_t bytes() const { return bytes_; }
    const std::map<uint64_t, uint64_t>& all() const { return ends_; }

   private:
    std::map<uint64_t, uint64_t> ends_ = {};  // by begin
    uint64_t bytes_ = 0;
  };
  struct Part {
    MappedBytes bytes = {};
    Ranges written = {};
  };
  struct File {
    std::mutex mutex = {};
    std::vector<std::string> etags = {};     // of the parts that were sent
    std::map<uint64_t, uint32_t> crcs = {};  // of these, and of those of the upload before
    std::map<uint64_t, Part> parts = {};     // that are not complete; of one that is held, all
    // By part, the bytes of it that this process has and did not send: offsets and bytes.
    std::map<uint64_t, std::vector<std::pair<uint64_t, std::string>>> late = {};
    uint64_t size = 0;
    bool is_over = false;
  };
  struct Left {
    std::string file;
    uint64_t at;
    LeftBytes bytes;
  };

  bool is_packed(OutputId out) const;
  uint64_t number_of(OutputId out, uint64_t offset) const;
  uint64_t part_size(OutputId out, uint64_t number) const;
  bool goes_elsewhere(File& file, uint64_t number, uint64_t offset,
                      std::span<const std::byte> bytes) const;
  void send(OutputId out, uint64_t number, std::span<const std::byte> bytes);

  const CopyPlan& plan_;
  const FarPlace target_;
  const Cut cut_;
  std::vector<FarStaging::Object> objects_;
  const std::function<void()> on_sent_;
  std::deque<File> files_;       // deque: they cannot move
  std::vector<Left> left_ = {};  // by other processes
  std::mutex doubting_;
  std::set<std::string> doubtful_ = {};
};

}  // namespace dsckpt
