// OutputSums: checksums of the planned output, to compare with the files.
//
// A sink in front of another one: it keeps the CRC32 of each chunk of each output. Memory: about 64
// bytes for each chunk, and for each place of a digest that is not written yet. A resumed run takes
// over the checksums of the stopped one.
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

// A file, and the checksums of the pieces that it must have.
struct MeantFile {
  std::filesystem::path path = {};    // where it is now; in `folder`, if there is one
  std::optional<Folder> folder = {};  // of this user alone
  std::string display = {};           // its name in errors

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

  // The planned contents of the files of all outputs [first, last) that were written, after the
  // last finish(). `path` gives the present path of an output, `display` its name in errors. The
  // caller sets `folder` if the paths are in one.
  std::vector<MeantFile> meant(const std::function<std::filesystem::path(OutputId)>& path,
                               const std::function<std::string(OutputId)>& display,
                               OutputId first = 0, OutputId last = ~OutputId{0}) const;
  // The same for about the last `bytes` that were written.
  std::vector<MeantFile> last_meant(uint64_t bytes,
                                    const std::function<std::filesystem::path(OutputId)>& path,
                                    const std::function<std::string(OutputId)>& display) const;
  // The number of bytes written.
  uint64_t bytes() const;

  // The writes so far; not to be taken during one.
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
  // Adds the writes of another object for the same plan. Throws CorruptError for writes that cannot
  // be of that plan.
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
