#include "format/compare_values.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "base/kernels.h"
#include "format/read_tensor.h"

namespace dsckpt {
namespace {

// Most differences show at once, so the first comparison is short.
constexpr int64_t kFirstLook = 1024;
constexpr int64_t kChunk = 256 << 10;

// Calls `holds(first, count)` for pieces of `numel` elements until it returns false.
template <typename F>
bool holds_throughout(int64_t numel, F&& holds) {
  for (int64_t at = 0, count = 0; at < numel; at += count) {
    count = std::min(at == 0 ? kFirstLook : kChunk, numel - at);
    if (!holds(at, count)) return false;
  }
  return true;
}

void read(const InputFiles& inputs, const TensorSource& tensor, int64_t first, int64_t count,
          std::vector<std::byte>& out) {
  out.resize(static_cast<size_t>(count) * size_of(tensor.dtype()));
  read_elements(inputs, tensor, first, count, out);
}

}  // namespace

bool is_rounding_of(const InputFiles& inputs, const TensorSource& low, const TensorSource& master) {
  std::vector<std::byte> expected;
  std::vector<std::byte> stored;
  std::vector<std::byte> wide;
  return holds_throughout(low.numel(), [&](int64_t first, int64_t count) {
    read(inputs, master, first, count, wide);
    read(inputs, low, first, count, stored);
    expected.resize(stored.size());
    convert(master.dtype(), low.dtype(), wide.data(), expected.data(), static_cast<size_t>(count));
    return std::memcmp(expected.data(), stored.data(), stored.size()) == 0;
  });
}

bool same_values(const InputFiles& inputs, const TensorSource& a, const TensorSource& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  const std::pair<TensorSource, TensorSource> once = without_same_repeats(a, b);
  std::vector<std::byte> of_a;
  std::vector<std::byte> of_b;
  return holds_throughout(once.first.numel(), [&](int64_t first, int64_t count) {
    read(inputs, once.first, first, count, of_a);
    read(inputs, once.second, first, count, of_b);
    return of_a == of_b;
  });
}

std::pair<TensorSource, TensorSource> without_same_repeats(const TensorSource& a,
                                                           const TensorSource& b) {
  TensorSource once_a = a.without_repeats();
  TensorSource once_b = b.without_repeats();
  if (once_a.shape() != once_b.shape()) return {a, b};
  return {std::move(once_a), std::move(once_b)};
}

bool is_constant(const InputFiles& inputs, const TensorSource& source) {
  const TensorSource tensor = source.without_repeats();
  const size_t size = size_of(tensor.dtype());
  std::vector<std::byte> value;
  std::vector<std::byte> some;
  if (tensor.numel() > 0) read(inputs, tensor, 0, 1, value);
  return holds_throughout(tensor.numel(), [&](int64_t first, int64_t count) {
    read(inputs, tensor, first, count, some);
    for (size_t at = 0; at < some.size(); at += size) {
      if (std::memcmp(some.data() + at, value.data(), size) != 0) return false;
    }
    return true;
  });
}

}  // namespace dsckpt
