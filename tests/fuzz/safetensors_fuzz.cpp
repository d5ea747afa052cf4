// Any bytes are a safetensors file, or a corrupt or unsupported one; every tensor lies in the file.
// Where its header says so, tensors are chunks of larger ones.
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "checkpoint/weights_chunks.h"
#include "dsckpt/error.h"
#include "format/safetensors.h"
#include "fuzz/memory_file.h"
#include "io/input_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsckpt;
  const MemoryFile memory(data, size);
  InputFiles files;
  const FileId id = files.add(memory.path());
  try {
    static_cast<void>(SafetensorsFile::probe(files[id]));
    const auto file = SafetensorsFile::open(files, id);
    for (const auto& entry : file.entries()) {
      if (entry.extent.offset > size || entry.extent.size > size - entry.extent.offset) {
        std::abort();
      }
      static_cast<void>(file.tensor(entry).nbytes());
    }
    if (!has_chunks(file)) return 0;
    WeightsChunks chunks;
    chunks.add(files[id], file);
    static_cast<void>(std::move(chunks).take());
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::corrupt && error.kind() != ErrorKind::unsupported &&
        error.kind() != ErrorKind::inconsistent) {
      std::abort();
    }
  }
  return 0;
}
