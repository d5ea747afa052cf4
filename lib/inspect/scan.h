// Scan: every global that the pickles below a path name, and whether it would run code.
//
// Nothing is loaded, imported or called. Harmless is a file of a form that writers write, in which
// every call is one that they write (written_calls.h). What a file is, its content says, since
// loaders do not look at its name: that only decides what is expected of it. Files of other kinds
// are harmless if no unpickler does anything with them before it stops.
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
  // pickle::to_strings(), or for getattr of enums {"getattr of module.Class.member", ...}
  std::vector<std::string> uses;
  std::string file;
  std::string record;   // of a zip, "archive/data.pkl"; of what is in another one "a.zip > b.pkl"
  uint64_t offset = 0;  // of the opcode that names it, from the start of the record or file
  // Of `global`: whether it is a name as it stands in the pickle.
  pickle::NamedGlobal::Form form = pickle::NamedGlobal::Form::name;
  std::string reason = {};  // of a name that writers use otherwise: "at 31: ..."
};

// What is not looked into. Unknown: it may hold anything, as an archive of another kind does.
// Dangerous: it is of a kind that is looked into, and not of a form that any writer gives it.
struct Unreadable {
  std::string file;
  std::string record;
  std::string reason;  // "7z archive"
  GlobalClass danger = GlobalClass::unknown;
};

struct ScanResult {
  uint64_t files = 0;    // looked at
  uint64_t pickles = 0;  // looked into
  // Of the files those without a pickle, which no loader of pickles reads: texts, safetensors...
  std::vector<std::string> not_examined;
  // By file, in the order of paths; in a file by record and offset.
  std::vector<ScanFinding> findings;
  std::vector<Unreadable> unreadable;

  // The worst class of all.
  GlobalClass worst() const;
  // Makes unknown names allowed that one of `names` matches from their first letter to the last.
  // What is dangerous stays so.
  void allow(const Patterns& names);
};

// Scans a file, or all files below a folder, several at a time. Links to files are read, links to
// folders below `path` are unreadable. Memory: the pickles, never a tensor beside them. Throws
// IoError if there is no `path`; files that cannot be read are in the result.
// `progress` as SourceOptions::progress.
ScanResult scan(const std::filesystem::path& path, Progress* progress = nullptr);

}  // namespace dsckpt
