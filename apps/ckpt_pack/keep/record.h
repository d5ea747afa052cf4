// Record: what keep says of a checkpoint that it has brought to a place, in a file beside it there.
//
// JSON: {"schema": 1, "type": "kept", "name", "is_tag", "step", "how", "files": [{"path", "bytes",
// "modified"}], "outputs": [{"path", "bytes"}]}. It says nothing of time, so that the same
// checkpoint gives the same bytes, and a stopped run can be resumed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dsckpt/job.h"

namespace dsckpt::pack {

inline constexpr const char* kRecordName = ".dsckpt-keep.json";

// A file of a checkpoint in the run.
struct RunFile {
  std::string path;  // in the checkpoint's folder
  uint64_t bytes = 0;
  int64_t modified = 0;  // nanoseconds since the epoch

  bool operator==(const RunFile&) const = default;
};

struct Record {
  std::string name = {};  // of its folder in the run
  bool is_tag = false;    // that folder is a tag's, beside `latest`; else it is all there is
  std::optional<int64_t> step = {};
  std::string how = {};               // "copied", "packed", "weights" or "resume"
  std::vector<RunFile> files = {};    // as they were in the run, by path
  std::vector<JobFile> outputs = {};  // what is in the place, but for the record
};

std::string text_of(const Record& record);
// Throws CorruptError if the text is not a record, UnsupportedError for another schema.
Record parse_record(std::string_view text);

}  // namespace dsckpt::pack
