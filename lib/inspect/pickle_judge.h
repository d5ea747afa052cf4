// Judge: whether a pickle does only what picklers write (written_calls.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "pickle/trace.h"

namespace dsckpt {

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
