// Any bytes are a torch archive, or a corrupt or unsupported file; every tensor lies in the file.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "dsckpt/error.h"
#include "format/torch_archive.h"
#include "fuzz/memory_file.h"
#include "io/input_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsckpt;
  const MemoryFile memory(data, size);
  InputFiles files;
  try {
    const auto archive = TorchArchive::open(files, files.add(memory.path()));
    if (!archive.root().is_mapping()) return 0;
    for (const auto& [key, value] : archive.root().as_dict().items) {
      if (!TorchArchive::is_tensor(value)) continue;
      const auto view = archive.tensor(value).as_strided();
      if (view && (view->extent.offset > size || view->extent.size > size - view->extent.offset)) {
        std::abort();
      }
      static_cast<void>(archive.scalar(value));
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::corrupt && error.kind() != ErrorKind::unsupported) std::abort();
  }
  return 0;
}
