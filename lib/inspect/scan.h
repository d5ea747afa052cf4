// Scan: lists every global in the pickles below a path, and decides whether it would run code.
//
// Nothing is loaded, imported or called. A file is harmless if it has a form that writers use, and
// every call in it is one that they write (written_calls.h). The content decides the form of a
// file, since loaders ignore its name. The name only decides which form is expected. Files of other
// kinds are harmless if every unpickler stops before it does anything with them.
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
  // "os.system"; "os.<computed>", "extension code 5", "<persistent id>". A dot separates module and
  // name.
  std::string global;
  // pickle::to_strings(), or for getattr of enums {"getattr of module.Class.member", ...}
  std::vector<std::string> uses;
  std::string file;
  std::string record;   // of a zip, "archive/data.pkl"; of what is in another one "a.zip > b.pkl"
  uint64_t offset = 0;  // of the opcode that names it, from the start of the record or file
  // The form of `global` in the pickle.
  pickle::NamedGlobal::Form form = pickle::NamedGlobal::Form::name;
  std::string reason = {};  // of a name that writers use otherwise: "at 31: ..."
};

// Content that is not examined. Unknown: it may hold anything, such as an archive of another kind.
// Dangerous: it should be examined, but no writer gives it this form.
struct Unreadable {
  std::string file;
  std::string record;
  std::string reason;  // "7z archive"
  GlobalClass danger = GlobalClass::unknown;
};

struct ScanResult {
  uint64_t files = 0;    // looked at
  uint64_t pickles = 0;  // looked into
  // The examined files without a pickle, which no loader of pickles reads: texts, safetensors...
  std::vector<std::string> not_examined;
  // By file, in the order of paths; in a file by record and offset.
  std::vector<ScanFinding> findings;
  std::vector<Unreadable> unreadable;

  // The worst class of all.
  GlobalClass worst() const;
  // Allows the unknown names that one of `names` matches as a whole. Dangerous names stay
  // dangerous.
  void allow(const Patterns& names);
};

// Scans a file, or all files below a folder, several at a time. Links to files are followed; links
// to folders below `path` are unreadable. Memory holds the pickles, never a tensor. Throws IoError
// if `path` does not exist; files that cannot be read are in the result. `progress` is as
// SourceOptions::progress.
ScanResult scan(const std::filesystem::path& path, Progress* progress = nullptr);

}  // namespace dsckpt
