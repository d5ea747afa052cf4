// RankJob: what processes have to know besides their tasks, and how one tells another an error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/varint.h"
#include "dsckpt/error.h"
#include "exec/portion.h"
#include "exec/staged_files.h"
#include "io/input_file.h"

namespace dsckpt {

// The kind of tasks in a job.
enum class Tasks : uint8_t {
  portions,  // Portion; what comes of one is a PortionResult
  pieces,    // PieceTask, and answers
};

// The facts of a run that another process needs besides its tasks.
struct RankJob {
  // An input as rank 0 sees it: `path` as it was opened, absolute, or a URL.
  struct Input {
    std::string path = {};
    std::string display = {};
    uint64_t stored_size = 0;
    int64_t modified = 0;
    // If nodes have files of their own (node_files.h): the rank that has the file, and its stored
    // path there. The rank is -1 if all ranks see the file at `path`.
    int owner = -1;
    std::string path_there = {};
    // In an object store, or on a web server: FarFile::version, and its stored URL is `path_there`.
    std::optional<std::string> version = {};

    static void fields(auto& codec, auto& self) {
      codec(self.path, self.display, self.stored_size, self.modified, self.owner, self.path_there,
            self.version);
    }

    static Input of(const InputFile& file);
    // Opens it as it was, in a store, or the file that has its path now. Throws as InputFile and
    // far_file_called().
    FileId open(InputFiles& files) const;
    // The bucket or server of its URL, "s3://bucket"; "" of a file in a folder.
    std::string site() const;
    bool is_same(const InputFile& file) const {
      return file.stored_size() == stored_size && file.modified() == modified;
    }
  };
  std::vector<Input> inputs = {};
  Tasks tasks = Tasks::portions;
  // For portions.
  StagingPlace place = {};
  PortionOptions options = {};
  // Sync to disk before a result is saved.
  bool sync_results = true;
  // The argument of FileClient::of(), if nodes have files of their own.
  std::string servers = {};

  // Appends all files, in their order.
  void add_inputs(const InputFiles& files);

  static void fields(auto& codec, auto& self) {
    codec(self.inputs);
    codec.one_of(self.tasks, Tasks::pieces);
    codec(self.place, self.options, self.sync_results, self.servers);
  }
  std::string encode() const { return encoded(*this); }
  static RankJob decode(std::string_view bytes) { return decoded<RankJob>(bytes); }
};

// The error for `file`, which has the path of `wanted` and is another file: on a rank, or since it
// was planned.
IoError other_input(const RankJob::Input& wanted, const InputFile& file, bool on_rank);

// A rank's part of `bytes_per_second` for all ranks; 0: no limit.
uint64_t rate_of_rank(uint64_t bytes_per_second, int ranks);

// Encodes any exception as an error for another process to report. An exception that is not an
// Error is a bug, and stays one.
std::string encode_failure(const std::exception& failure);
// Throws it there, with `who` in front, unless `who` is empty.
[[noreturn]] void throw_failure(std::string_view bytes, const std::string& who);
// True for a failure of that rank; false for one that any rank would find in the files.
bool is_of_rank(std::string_view failure);

}  // namespace dsckpt
