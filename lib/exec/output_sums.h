// OutputSums: what was meant to be written, so that it can be compared with what is there.
//
// A sink in front of another one: it keeps the CRC32 of each chunk of each output. Memory: 64 bytes
// or so a chunk, and as much for each place of a digest that is not written yet. A run that goes on
// where another one stopped takes over what that one has written.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/sink.h"
#include "io/folder.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// A file, and the checksums of the pieces that were meant for it.
struct MeantFile {
  std::filesystem::path path = {};    // where it is now; in `folder`, if there is one
  std::optional<Folder> folder = {};  // of this user alone
  std::string display = {};           // what an error calls it

  struct Piece {
    uint64_t begin = 0;
    uint64_t size = 0;
    uint32_t crc = 0;

    uint64_t end() const { return begin + size; }
  };
  std::vector<Piece> pieces = {};  // rising and apart, each in one chunk (OutputSums::kChunk)
};

class OutputSums : public Sink {
 public:
  static constexpr uint64_t kChunk = 16 << 20;

  // `target` must outlive this.
  OutputSums(const CopyPlan& plan, Sink& target);

  void write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) override;
  bool wants_digests_early() const override { return target_.wants_digests_early(); }
  void finish(OutputId out) override;

  // What is meant to be in the files of all outputs that were written, after the last finish().
  // `path` says where an output is now, `display` what an error calls it. Of outputs [first, last).
  // Whoever's paths are in a folder sets that.
  std::vector<MeantFile> meant(const std::function<std::filesystem::path(OutputId)>& path,
                               const std::function<std::string(OutputId)>& display,
                               OutputId first = 0, OutputId last = ~OutputId{0}) const;
  // Of it about the last `bytes` that were written.
  std::vector<MeantFile> last_meant(uint64_t bytes,
                                    const std::function<std::filesystem::path(OutputId)>& path,
                                    const std::function<std::string(OutputId)>& display) const;
  // That were written.
  uint64_t bytes() const;

  // What has been written so far; not while anything is.
  struct State {
    struct Written {
      OutputId out = 0;
      uint64_t offset = 0;
      uint64_t size = 0;
      uint32_t crc = 0;
    };
    std::vector<Written> written = {};  // in order
  };
  State state() const;
  // Adds what another object for the same plan was given. Throws CorruptError for what cannot be of
  // that plan.
  void restore(const State& state);

 private:
  struct Piece {
    uint64_t size;
    uint32_t crc;
  };
  struct Output {
    std::mutex mutex = {};
    std::map<uint64_t, Piece> pieces = {};  // by offset; neighbours in a chunk are one
  };
  static void add(Output& output, uint64_t offset, const Piece& piece);

  Sink& target_;
  std::deque<Output> outputs_;  // deque: they cannot move
};

}  // namespace dsckpt
