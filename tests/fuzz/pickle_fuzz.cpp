// Any bytes are a pickle, or a corrupt or unsupported one; nothing else happens.
#include <cstdint>
#include <cstdlib>

#include "dsckpt/error.h"
#include "pickle/pickle.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsckpt;
  pickle::Limits limits;
  limits.max_bytes = uint64_t{1} << 20;
  try {
    const auto document = pickle::Document::parse({reinterpret_cast<const std::byte*>(data), size},
                                                  0, nullptr, limits);
    static_cast<void>(pickle::to_string(document.root().kind()));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::corrupt && error.kind() != ErrorKind::unsupported) std::abort();
  }
  return 0;
}
