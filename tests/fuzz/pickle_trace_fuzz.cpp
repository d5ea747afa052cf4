// Any bytes can be traced and judged. A trace and a judgement also read whatever Document::parse
// reads, to the same end and with the same names.
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <set>

#include "dsckpt/error.h"
#include "inspect/global_classes.h"
#include "inspect/pickle_judge.h"
#include "pickle/pickle.h"
#include "pickle/trace.h"

namespace {

using namespace dsckpt;

std::optional<Judgement> judged(ByteSpan bytes, PickleOf whose) {
  try {
    return judge(bytes, whose, bytes.size(), 0);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string name_of(const pickle::NamedGlobal& global) {
  return global.module + "." + global.name;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ByteSpan bytes(reinterpret_cast<const std::byte*>(data), size);
  const pickle::Trace trace = pickle::trace(ByteSource(bytes));
  const auto judgement = judged(bytes, PickleOf::anybody);
  judged(bytes, PickleOf::torch);
  std::set<std::string> traced;
  for (const pickle::NamedGlobal& global : trace.globals) traced.insert(name_of(global));
  if (judgement) {
    if (!trace.whole() || trace.end != judgement->end || trace.died != pickle::Trace::kNowhere) {
      std::abort();
    }
    if (pickle::length(ByteSource(bytes)) != judgement->end) std::abort();
    for (const JudgedGlobal& global : judgement->globals) {
      classify(global);
      if (global.named.form != pickle::NamedGlobal::Form::name) continue;
      if (!traced.contains(name_of(global.named))) std::abort();
    }
  }
  try {
    size_t end = 0;
    const auto document = pickle::Document::parse(bytes, 0, &end);
    if (!trace.whole() || trace.end != end) std::abort();
    // A judgement also refuses values that are dropped and nest too deep.
    if (judgement && judgement->end != end) std::abort();
    for (const std::string& name : document.globals()) {
      if (!traced.contains(name)) std::abort();
    }
  } catch (const Error&) {
    if (judgement) std::abort();
  }
  return 0;
}
