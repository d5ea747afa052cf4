// Any bytes are a `.metadata` of DCP, or a corrupt or unsupported one; what is read of it keeps to
// its promises.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <unordered_set>

#include "dsckpt/error.h"
#include "format/dcp_metadata.h"
#include "fuzz/memory_file.h"
#include "fuzz/refuse_as.h"
#include "io/input_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsckpt;
  const MemoryFile memory(data, size);
  const InputFile file(memory.path());
  refuse_as<ErrorKind::corrupt, ErrorKind::unsupported>([&] {
    std::unordered_set<std::string> names;
    for (const DcpValue& value : read_dcp_metadata(file).values) {
      if (!names.insert(value.name).second) std::abort();
      if (!value.tensor) continue;
      for (const DcpChunk& chunk : value.tensor->chunks) {
        if (chunk.offsets.size() != value.tensor->shape.size()) std::abort();
        if (chunk.sizes.size() != value.tensor->shape.size()) std::abort();
      }
    }
  });
  return 0;
}
