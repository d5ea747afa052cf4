// What picklers write: which names, what they are called with, and what is put into the results.
//
// A pickle is harmless only if every call in it is in the table of written_calls.cpp, which was
// taken from what torch.save, pickle, NumPy, DCP and the frameworks around them write. So nothing
// is looked for that does harm: what nobody writes is not harmless.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "pickle/trace.h"

namespace dsckpt {

// Of a name in the table: how it may be used, flags of pickle::Use. 0 for names that are not there.
// Names of Python 2 count as what Python 3 makes of them (_compat_pickle.py).
unsigned written_uses(std::string_view module, std::string_view name);

// True for what picklers take by getattr: a member of an enum whose class is in the table, as
// Python 3.11.0 to 3.11.3 do, and a class of the table that is inside of another, as protocols 2
// and 3 do.
bool is_written_attribute(const pickle::NamedGlobal::Attribute& attribute);

// Whose pickle it is: torch's name storages by persistent ids.
enum class PickleOf : uint8_t { anybody, torch };

struct JudgedGlobal {
  pickle::NamedGlobal named;
  // What of its uses no writer does, with the offset; "" if there is nothing. Only names of the
  // table have one, and states that nobody writes.
  std::string problem;
};

// A storage of torch, by what a pickle says of it.
struct ClaimedStorage {
  std::string key;
  uint64_t bytes = 0;
  uint64_t item = 1;  // bytes of an element
  uint64_t offset = 0;
};

// Bytes that begin like a pickle or a zip.
struct InnerBytes {
  std::string bytes;
  uint64_t offset = 0;
};

struct Judgement {
  uint64_t end = 0;  // after STOP
  std::vector<JudgedGlobal> globals;
  std::vector<std::string> problems;     // of no global
  std::vector<ClaimedStorage> storages;  // each key once
  std::vector<InnerBytes> inner;
  std::vector<std::string> keys;  // if the pickle is a list of texts: the storages of a legacy file
};

// Parses the pickle at the start of `bytes` and judges what it does. `file_size`: of the file that
// it lies in, which bounds what it may allocate; offsets are counted from `base`. Throws
// CorruptError for what Document::parse refuses. Time is linear in the length.
Judgement judge(ByteSpan bytes, PickleOf whose, uint64_t file_size, uint64_t base);

}  // namespace dsckpt
