// Scan: every global that the pickles below a path name, and whether it would run code.
//
// Nothing is loaded, imported or called: pickles are traced (pickle/trace.h). What a file is, its
// content says; its name only decides what is expected of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/patterns.h"
#include "inspect/global_classes.h"

namespace dsckpt {

struct Progress;

// A global in one pickle.
struct ScanFinding {
  GlobalClass danger = GlobalClass::unknown;
  // "os.system"; "os.<computed>", "extension code 5", "<persistent id>"; a dot stands between
  // module and name.
  std::string global;
  // to_strings(Use), or for getattr of enums {"getattr of module.Class.member", ...}
  std::vector<std::string> uses;
  std::string file;
  std::string record;   // of a zip, "archive/data.pkl"; of what is in another one "a.zip > b.pkl"
  uint64_t offset = 0;  // of the opcode that names it, from the start of the record or file
  // Of `global`: whether it is a name as it stands in the pickle.
  pickle::NamedGlobal::Form form = pickle::NamedGlobal::Form::name;
};

// What could not be read and may hold anything: counts as unknown.
struct Unreadable {
  std::string file;
  std::string record;
  std::string reason;  // "7z archive"
};

struct ScanResult {
  uint64_t files = 0;    // looked at
  uint64_t pickles = 0;  // traced
  // Of the files those without a pickle, which no loader of pickles reads: texts, safetensors...
  std::vector<std::string> not_examined;
  // By file, in the order of paths; in a file by record and offset.
  std::vector<ScanFinding> findings;
  std::vector<Unreadable> unreadable;

  // The worst class of all findings; at least unknown if something is unreadable.
  GlobalClass worst() const;
  // Makes unknown names allowed that one of `names` matches from their first letter to the last.
  // What is dangerous stays so.
  void allow(const Patterns& names);
};

// Scans a file, or all files below a folder, several at a time. Links to files are read, links to
// folders below `path` are unreadable. Memory: a window of each pickle, never a tensor. Throws
// IoError if there is no `path`; files that cannot be read are in the result.
// `progress` as SourceOptions::progress.
ScanResult scan(const std::filesystem::path& path, Progress* progress = nullptr);

}  // namespace dsckpt
