#include "inspect/questions.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bytes.h"
#include "base/kernels.h"
#include "base/widen.h"

namespace dsckpt {
namespace {

bool is_nan(DType dtype, const std::byte* at) {
  float value = 0;
  if (!can_convert(dtype, DType::float32)) return false;
  convert(dtype, DType::float32, at, reinterpret_cast<std::byte*>(&value), 1);
  return std::isnan(value);
}

}  // namespace

Statistics StatisticsQuestion::operator()(const PassItem& item, const Block&,
                                          const BlockBytes& bytes) const {
  return statistics_of(item.sources.front().value.dtype(), bytes.front(), histogram);
}

Difference DifferenceQuestion::operator()(const PassItem& item, const Block& block,
                                          const BlockBytes& bytes) const {
  return difference_of({item.sources[0].value.dtype(), bytes[0]},
                       {item.sources[1].value.dtype(), bytes[1]}, static_cast<DType>(item.option),
                       block.first, tolerance);
}

void code(VarintWriter& writer, Exact value) {
  const auto high = static_cast<double>(value);
  writer(high, std::isfinite(high) ? static_cast<double>(value - high) : 0.0);
}

void code(VarintReader& reader, Exact& value) {
  value = reader.real();
  value += reader.real();
}

void Nonfinite::add(const Nonfinite& other) {
  nan += other.nan;
  inf += other.inf;
  if (!first) first = other.first;
}

Nonfinite NonfiniteQuestion::operator()(const PassItem& item, const Block& block,
                                        const BlockBytes& bytes) const {
  const bool may_be_infinite = item.option != 0;
  const DType stored = item.sources.front().value.dtype();
  const Statistics statistics = statistics_of(stored, bytes.front());
  const bool infinite = statistics.infinities() > 0 && !may_be_infinite;
  Nonfinite count;
  if (statistics.nans == 0 && !infinite) return count;
  const DType part = real_part(stored);
  const size_t parts = size_of(stored) / size_of(part);
  std::vector<double> values(bytes.front().size() / size_of(part));
  to_float64(part, bytes.front().data(), values.data(), values.size());
  for (size_t i = 0; i < values.size(); i += parts) {
    const std::span<const double> element(values.data() + i, parts);
    const auto has = [&](bool (*is)(double)) {
      return std::any_of(element.begin(), element.end(), is);
    };
    const bool nan = has([](double x) { return std::isnan(x); });
    const bool inf = !nan && !may_be_infinite && has([](double x) { return std::isinf(x); });
    if (!nan && !inf) continue;
    ++(nan ? count.nan : count.inf);
    if (!count.first) count.first = block.first + static_cast<int64_t>(i / parts);
  }
  return count;
}

void NotRounded::add(const NotRounded& other) {
  if (!first) first = other.first;
}

NotRounded NotRoundedQuestion::operator()(const PassItem& item, const Block& block,
                                          const BlockBytes& bytes) const {
  thread_local std::vector<std::byte> converted;
  const DType to = item.sources[0].value.dtype();
  const DType from = item.sources[1].value.dtype();
  const size_t size = size_of(to);
  std::span<const std::byte> rounded = bytes[1];
  if (from != to) {
    converted.resize(bytes[0].size());
    convert(from, to, bytes[1].data(), converted.data(), static_cast<size_t>(block.count));
    rounded = converted;
  }
  if (std::memcmp(bytes[0].data(), rounded.data(), rounded.size()) == 0) return {};
  for (int64_t i = 0; i < block.count; ++i) {
    const std::byte* a = bytes[0].data() + static_cast<size_t>(i) * size;
    const std::byte* b = rounded.data() + static_cast<size_t>(i) * size;
    if (std::memcmp(a, b, size) == 0 || (is_nan(to, a) && is_nan(to, b))) continue;
    return {.first = block.first + i};
  }
  return {};
}

}  // namespace dsckpt
