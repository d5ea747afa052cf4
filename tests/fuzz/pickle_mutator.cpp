// libFuzzer's changes of inputs that are pickles: half of them are edits of opcodes.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

#include "base/bytes.h"
#include "dsckpt/error.h"
#include "fuzz/edited_pickle.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  using namespace dsckpt;
  std::minstd_rand random(seed);
  if (random() % 2 == 0) return LLVMFuzzerMutate(data, size, most);
  std::array<std::byte, 16> edits;
  std::ranges::generate(edits, [&] { return static_cast<std::byte>(random() >> 8U); });
  try {
    const std::string pickle =
        edited_pickle({reinterpret_cast<const char*>(data), size}, std::span(edits));
    if (pickle.empty() || pickle.size() > most) return LLVMFuzzerMutate(data, size, most);
    std::ranges::copy(pickle, data);
    return pickle.size();
  } catch (const CorruptError&) {  // no pickle
    return LLVMFuzzerMutate(data, size, most);
  }
}
