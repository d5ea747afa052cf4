// Any bytes are a zip archive, or a corrupt or unsupported one; every record lies in the file.
#include <cstdint>
#include <cstdlib>

#include "dsckpt/error.h"
#include "format/zip.h"
#include "fuzz/memory_file.h"
#include "io/input_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsckpt;
  const MemoryFile memory(data, size);
  const InputFile file(memory.path());
  try {
    static_cast<void>(ZipReader::probe(file));
    const auto zip = ZipReader::open(file, 0);
    for (const auto& entry : zip.entries()) {
      try {
        const Extent extent = zip.data(entry);
        if (extent.offset > size || extent.size > size - extent.offset) std::abort();
        static_cast<void>(zip.read(entry));
      } catch (const CorruptError&) {
        // One bad record does not spoil the others.
      }
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::corrupt && error.kind() != ErrorKind::unsupported) std::abort();
  }
  return 0;
}
