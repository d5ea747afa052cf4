// Any bytes are a safetensors file, or a corrupt or unsupported one; every tensor lies in the file.
#include <cstdint>
#include <cstdlib>

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
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::corrupt && error.kind() != ErrorKind::unsupported) std::abort();
  }
  return 0;
}
