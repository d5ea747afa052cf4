// The options and the findings of verify().
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "exec/reading.h"
#include "inspect/verify/manifest_file.h"

namespace dsckpt {

enum class Check : uint8_t {
  missing,     // a rank's file, or a parameter's, is not there
  extra,       // a file of a rank or parameter that cannot be
  unreadable,  // not a whole zip, pickle or safetensors file
  crc,         // a record's bytes are not those that were saved
  wrong_rank,  // a file was saved under another rank's name
  step,        // files are of different saves
  layout,      // elements not accounted for; fields that are missing or of the wrong kind or size
  shape,       // shapes disagree
  replica,     // copies differ
  rounding,    // a 16-bit weight is not the rounding of its master
  nonfinite,   // NaN or Inf
  latest,      // `latest` names no tag that is there
  index,       // an index of weights disagrees with the files
  manifest,    // not what the manifest says
};
inline constexpr size_t kCheckCount = 14;
// "wrong-rank"
const char* to_string(Check check);

struct FindingRank {
  uint32_t dp = 0;
  uint32_t mp = 0;
};

// A defect, and its place. Empty fields are unknown or have no meaning.
struct Finding {
  Check check = Check::unreadable;
  std::string message;
  std::string file;  // relative to the parent of the folder that was looked at
  std::optional<FindingRank> rank = {};
  std::string member = {};  // a record of the zip, or a key of the pickle
  std::string tensor = {};
  std::string state = {};  // of `tensor`, that the optimizer keeps; "" of the tensor itself
  // For a damaged record: the parameters and states in it ("w", "w exp_avg"), else the keys of its
  // tensors in the pickle.
  std::vector<std::string> tensors = {};
  // Bytes from the start of the file, or elements of the flat tensor that `member` names.
  std::optional<uint64_t> offset = {};
  std::optional<uint64_t> size = {};  // in bytes
};

struct CheckDone {
  bool done = false;
  std::string why;  // it was not done, or not everywhere; may be empty if it was
};

struct VerifyReport {
  std::string form;  // "zero", "universal", "dcp", "weights" or "file"
  std::filesystem::path folder;
  std::string choice;             // why it is this one, where the path left a choice; else ""
  std::vector<Finding> findings;  // in the order of the checks, then of the files
  uint64_t files = 0;
  uint64_t records = 0;  // whose CRC32 was checked
  uint64_t bytes = 0;    // of all files
  std::array<CheckDone, kCheckCount> checks;
  std::optional<Manifest> manifest;  // of the files as they are, if it was asked for

  bool ok() const { return findings.empty(); }
};

struct VerifyOptions {
  std::string tag;                                // as OpenOptions::tag
  std::vector<std::filesystem::path> roots = {};  // as OpenOptions::roots
  std::string model = {};                         // as OpenOptions::model
  std::vector<std::string> tp_rules = {};         // as SourceOptions::tp_rules
  bool finite = false;                            // look for NaN and Inf in weights and states
  std::filesystem::path manifest;                 // compare with it; none if empty
  // Makes a manifest. It leaves out this file, to which it will be written. Empty: makes none.
  std::filesystem::path new_manifest;
  unsigned threads = 0;  // 0: as many as there are cores
  // The processes that share the reads of elements; nullptr: this one alone.
  Readers* readers = nullptr;
};

}  // namespace dsckpt
