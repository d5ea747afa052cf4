// libFuzzer's changes of inputs that are pickles: half of them are edits of opcodes.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "dsckpt/error.h"
#include "fuzz/edited_pickle.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

namespace dsckpt {
namespace {

// Nothing if `pickle` is none.
std::string edited_by(std::string_view pickle, std::minstd_rand& random) {
  std::array<std::byte, 16> edits;
  std::ranges::generate(edits, [&] { return static_cast<std::byte>(random() >> 8U); });
  try {
    return edited_pickle(pickle, edits);
  } catch (const CorruptError&) {
    return "";
  }
}

}  // namespace
}  // namespace dsckpt

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  std::minstd_rand random(seed);
  std::string pickle;
  if (random() % 2 == 1) {
    pickle = dsckpt::edited_by({reinterpret_cast<const char*>(data), size}, random);
  }
  if (pickle.empty() || pickle.size() > most) return LLVMFuzzerMutate(data, size, most);
  std::ranges::copy(pickle, data);
  return pickle.size();
}
