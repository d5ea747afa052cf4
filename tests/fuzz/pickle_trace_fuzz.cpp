// Any bytes can be traced, and all calls in them judged; and what Document::parse reads, a trace
// reads to the same end and with the same names.
#include <cstdint>
#include <cstdlib>
#include <set>

#include "dsckpt/error.h"
#include "inspect/global_classes.h"
#include "pickle/pickle.h"
#include "pickle/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsckpt;
  const ByteSpan bytes(reinterpret_cast<const std::byte*>(data), size);
  const pickle::Trace trace = pickle::trace(ByteSource(bytes), expected_calls());
  try {
    size_t end = 0;
    const auto document = pickle::Document::parse(bytes, 0, &end);
    std::set<std::string> names;
    for (const pickle::NamedGlobal& global : trace.globals) {
      names.insert(global.module + "." + global.name);
    }
    if (!trace.whole() || trace.end != end) std::abort();
    for (const std::string& name : document.globals()) {
      if (!names.contains(name)) std::abort();
    }
  } catch (const Error&) {
  }
  return 0;
}
