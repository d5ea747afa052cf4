#include "inspect/questions.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bytes.h"
#include "base/kernels.h"
#include "base/widen.h"

namespace dsckpt {
namespace {

void write_index(VarintWriter& writer, const std::optional<int64_t>& index) {
  writer.number(index ? static_cast<uint64_t>(*index) + 1 : 0);
}

std::optional<int64_t> read_index(VarintReader& reader) {
  const uint64_t index = reader.number();
  return index == 0 ? std::nullopt : std::optional(static_cast<int64_t>(index - 1));
}

// Two float64 hold every value of an Exact.
void write_exact(VarintWriter& writer, Exact value) {
  const auto high = static_cast<double>(value);
  writer.real(high);
  writer.real(std::isfinite(high) ? static_cast<double>(value - high) : 0);
}

Exact read_exact(VarintReader& reader) {
  const Exact high = reader.real();
  return high + reader.real();
}

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

void StatisticsQuestion::write(VarintWriter& writer) const {
  writer.number(histogram ? 1 : 0);
}

StatisticsQuestion StatisticsQuestion::read(VarintReader& reader) {
  return {.histogram = reader.number() != 0};
}

void StatisticsQuestion::write_part(VarintWriter& writer, const Part& part) {
  for (const uint64_t count :
       {part.count, part.zeros, part.nans, part.positive_infinities, part.negative_infinities}) {
    writer.number(count);
  }
  for (const double value : {part.min, part.max, part.mean, part.squared_deviations}) {
    writer.real(value);
  }
  for (const auto* bins : {&part.histogram.negative, &part.histogram.positive}) {
    writer.number(bins->size());
    for (const uint64_t bin : *bins) writer.number(bin);
  }
}

Statistics StatisticsQuestion::read_part(VarintReader& reader) {
  Statistics part;
  for (uint64_t* count : {&part.count, &part.zeros, &part.nans, &part.positive_infinities,
                          &part.negative_infinities}) {
    *count = reader.number();
  }
  for (double* value : {&part.min, &part.max, &part.mean, &part.squared_deviations}) {
    *value = reader.real();
  }
  for (auto* bins : {&part.histogram.negative, &part.histogram.positive}) {
    bins->resize(reader.count());
    for (uint64_t& bin : *bins) bin = reader.number();
  }
  return part;
}

Difference DifferenceQuestion::operator()(const PassItem& item, const Block& block,
                                          const BlockBytes& bytes) const {
  return difference_of({item.sources[0].value.dtype(), bytes[0]},
                       {item.sources[1].value.dtype(), bytes[1]}, static_cast<DType>(item.option),
                       block.first, tolerance);
}

void DifferenceQuestion::write(VarintWriter& writer) const {
  writer.number(tolerance ? 1 : 0);
  writer.real(tolerance ? tolerance->absolute : 0);
  writer.real(tolerance ? tolerance->relative : 0);
}

DifferenceQuestion DifferenceQuestion::read(VarintReader& reader) {
  const bool is_there = reader.number() != 0;
  Tolerance tolerance{.absolute = reader.real()};
  tolerance.relative = reader.real();
  return {.tolerance = is_there ? std::optional(tolerance) : std::nullopt};
}

void DifferenceQuestion::write_part(VarintWriter& writer, const Part& part) {
  for (const uint64_t count : {part.count, part.differing, part.outside, part.max_ulps}) {
    writer.number(count);
  }
  writer.real(part.max_relative);
  write_index(writer, part.index < 0 ? std::nullopt : std::optional(part.index));
  for (const Exact value : {part.max_absolute, part.a, part.b}) write_exact(writer, value);
  for (const double sum : {part.squared_change, part.squared_a, part.squared_b, part.product}) {
    writer.real(sum);
  }
}

Difference DifferenceQuestion::read_part(VarintReader& reader) {
  Difference part;
  for (uint64_t* count : {&part.count, &part.differing, &part.outside, &part.max_ulps}) {
    *count = reader.number();
  }
  part.max_relative = reader.real();
  part.index = read_index(reader).value_or(-1);
  for (Exact* value : {&part.max_absolute, &part.a, &part.b}) *value = read_exact(reader);
  for (double* sum : {&part.squared_change, &part.squared_a, &part.squared_b, &part.product}) {
    *sum = reader.real();
  }
  return part;
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

void NonfiniteQuestion::write(VarintWriter&) const {}

NonfiniteQuestion NonfiniteQuestion::read(VarintReader&) {
  return {};
}

void NonfiniteQuestion::write_part(VarintWriter& writer, const Part& part) {
  writer.number(part.nan);
  writer.number(part.inf);
  write_index(writer, part.first);
}

Nonfinite NonfiniteQuestion::read_part(VarintReader& reader) {
  Nonfinite part;
  part.nan = reader.number();
  part.inf = reader.number();
  part.first = read_index(reader);
  return part;
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

void NotRoundedQuestion::write(VarintWriter&) const {}

NotRoundedQuestion NotRoundedQuestion::read(VarintReader&) {
  return {};
}

void NotRoundedQuestion::write_part(VarintWriter& writer, const Part& part) {
  write_index(writer, part.first);
}

NotRounded NotRoundedQuestion::read_part(VarintReader& reader) {
  return {.first = read_index(reader)};
}

}  // namespace dsckpt
