// Statistics and differences against LibTorch's own reductions.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "base/difference.h"
#include "base/statistics.h"

namespace dsckpt {
namespace {

struct Type {
  DType ours;
  at::ScalarType theirs;
};

const std::vector<Type>& types() {
  static const std::vector<Type> kTypes{{DType::float64, at::kDouble},
                                        {DType::float32, at::kFloat},
                                        {DType::float16, at::kHalf},
                                        {DType::bfloat16, at::kBFloat16},
                                        {DType::float8_e4m3fn, at::kFloat8_e4m3fn},
                                        {DType::float8_e5m2, at::kFloat8_e5m2},
                                        {DType::float8_e4m3fnuz, at::kFloat8_e4m3fnuz},
                                        {DType::float8_e5m2fnuz, at::kFloat8_e5m2fnuz},
                                        {DType::int64, at::kLong},
                                        {DType::int32, at::kInt},
                                        {DType::int16, at::kShort},
                                        {DType::int8, at::kChar},
                                        {DType::uint8, at::kByte},
                                        {DType::boolean, at::kBool},
                                        {DType::complex64, at::kComplexFloat},
                                        {DType::complex128, at::kComplexDouble}};
  return kTypes;
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

at::Tensor real_parts(const at::Tensor& tensor) {
  return (tensor.is_complex() ? at::view_as_real(tensor) : tensor).flatten().to(at::kDouble);
}

uint64_t count(const at::Tensor& mask) {
  return static_cast<uint64_t>(mask.sum().item<int64_t>());
}

void expect_as_torch(const at::Tensor& tensor, DType dtype, CpuCode code) {
  const Statistics ours = statistics_of(dtype, bytes_of(tensor), true, code);
  const at::Tensor values = real_parts(tensor);
  const at::Tensor finite = values.masked_select(at::isfinite(values));
  EXPECT_EQ(ours.count, static_cast<uint64_t>(values.numel()));
  EXPECT_EQ(ours.nans, count(at::isnan(values)));
  EXPECT_EQ(ours.positive_infinities, count(at::isposinf(values)));
  EXPECT_EQ(ours.negative_infinities, count(at::isneginf(values)));
  EXPECT_EQ(ours.zeros, count(values == 0));
  if (finite.numel() < 2) return;
  EXPECT_EQ(ours.min, at::min(finite).item<double>());
  EXPECT_EQ(ours.max, at::max(finite).item<double>());
  const double size = finite.abs().mean().item<double>();
  const double norm = at::norm(finite).item<double>();
  EXPECT_NEAR(ours.mean, at::mean(finite).item<double>(), 1e-12 * size);
  EXPECT_NEAR(ours.sum(), at::sum(finite).item<double>(),
              1e-12 * size * static_cast<double>(finite.numel()));
  EXPECT_NEAR(ours.standard_deviation(), at::std(finite).item<double>(), 1e-12 * norm);
  EXPECT_NEAR(ours.norm(), norm, 1e-12 * norm);

  const at::Tensor numbers = finite.masked_select(finite != 0);
  const at::Tensor bins = at::floor(at::log2(numbers.abs())).clamp(Histogram::kFirstExponent, 127) -
                          Histogram::kFirstExponent;
  const auto expect_bins = [&](const std::vector<uint64_t>& bars, const at::Tensor& of) {
    const at::Tensor expected =
        at::bincount(of.to(at::kLong), {}, static_cast<int64_t>(Histogram::kBins));
    for (size_t i = 0; i < bars.size(); ++i) {
      EXPECT_EQ(bars[i], static_cast<uint64_t>(expected[static_cast<int64_t>(i)].item<int64_t>()));
    }
  };
  expect_bins(ours.histogram.positive, bins.masked_select(numbers > 0));
  expect_bins(ours.histogram.negative, bins.masked_select(numbers < 0));
}

TEST(StatisticsTorch, EveryTypeIsAsTorchSays) {
  at::manual_seed(1);
  for (const Type& type : types()) {
    for (const int64_t length : {0, 1, 2, 7, 16, 33, 2048, 2049, 50'001}) {
      for (const CpuCode code : {CpuCode::best, CpuCode::portable}) {
        SCOPED_TRACE(std::string(torch_name(type.ours)) + " " + std::to_string(length));
        at::Tensor values = at::randn({length}, at::kDouble) * 20;
        values.index_put_({at::randn({length}) > 1.5}, 0.0);
        expect_as_torch(values.to(type.theirs), type.ours, code);
      }
    }
  }
}

TEST(StatisticsTorch, NanAndInfinityAreAsTorchSays) {
  at::manual_seed(2);
  for (const Type& type : types()) {
    if (!is_floating_point(type.ours)) continue;
    at::Tensor values = at::randn({20'000}, at::kDouble);
    values.index_put_({at::randn({20'000}) > 2.0}, NAN);
    values.index_put_({at::randn({20'000}) > 2.5}, INFINITY);
    values.index_put_({at::randn({20'000}) > 3.0}, -INFINITY);
    SCOPED_TRACE(std::string(torch_name(type.ours)));
    expect_as_torch(values.to(type.theirs), type.ours, CpuCode::best);
  }
}

TEST(StatisticsTorch, DifferencesAreAsTorchSays) {
  at::manual_seed(3);
  for (const Type& type : types()) {
    if (!is_floating_point(type.ours)) continue;
    SCOPED_TRACE(std::string(torch_name(type.ours)));
    const at::Tensor a = at::randn({5000}, at::kDouble).to(type.theirs);
    const at::Tensor b = (a.to(at::kDouble) * 1.01 + 0.001).to(type.theirs);
    const Tolerance tolerance{.absolute = 2e-3, .relative = 1e-2};
    const Difference ours =
        difference_of({type.ours, bytes_of(a)}, {type.ours, bytes_of(b)}, type.ours, 0, tolerance);
    const at::Tensor wide_a = a.to(at::kDouble);
    const at::Tensor wide_b = b.to(at::kDouble);
    const at::Tensor distance = (wide_a - wide_b).abs();
    EXPECT_EQ(ours.count, 5000u);
    EXPECT_GE(ours.differing, count(distance > 0));
    EXPECT_EQ(ours.max_absolute, distance.max().item<double>());
    EXPECT_EQ(ours.index, distance.argmax().item<int64_t>());
    EXPECT_EQ(ours.outside, count(at::isclose(wide_a, wide_b, 1e-2, 2e-3).logical_not()));
    EXPECT_EQ(ours.max_relative,
              at::where(distance == 0, 0.0, distance / wide_b.abs()).max().item<double>());
  }
}

}  // namespace
}  // namespace dsckpt
