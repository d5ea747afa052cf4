// Judge: whether a pickle does only what picklers write (written_calls.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "pickle/trace.h"

namespace dsckpt {

// The origin of a pickle: torch's pickles name storages by persistent ids.
enum class PickleOf : uint8_t { anybody, torch };

struct JudgedGlobal {
  pickle::NamedGlobal named;
  // The use that no writer makes of it, with the offset; "" if there is none. Only names of the
  // table have one, and states that nobody writes.
  std::string problem;
};

// A storage of torch, as a pickle describes it.
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

// Parses the pickle at the start of `bytes` and judges its actions. `file_size` is that of its
// file, which bounds its allocations; offsets count from `base`. Throws CorruptError as
// Document::parse. Time is linear in the length.
Judgement judge(ByteSpan bytes, PickleOf whose, uint64_t file_size, uint64_t base);

}  // namespace dsckpt
