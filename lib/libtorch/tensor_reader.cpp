#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <utility>

#include "dsckpt/error.h"
#include "dsckpt/torch.h"

namespace dsckpt {
namespace {

at::ScalarType scalar_type(DType dtype) {
  // In the order of DType's enumerators.
  constexpr std::array<at::ScalarType, kDTypeCount> kTypes{at::ScalarType::Double,
                                                           at::ScalarType::Float,
                                                           at::ScalarType::Half,
                                                           at::ScalarType::BFloat16,
                                                           at::ScalarType::Float8_e4m3fn,
                                                           at::ScalarType::Float8_e5m2,
                                                           at::ScalarType::Float8_e4m3fnuz,
                                                           at::ScalarType::Float8_e5m2fnuz,
                                                           at::ScalarType::Float8_e8m0fnu,
                                                           at::ScalarType::Long,
                                                           at::ScalarType::Int,
                                                           at::ScalarType::Short,
                                                           at::ScalarType::Char,
                                                           at::ScalarType::UInt64,
                                                           at::ScalarType::UInt32,
                                                           at::ScalarType::UInt16,
                                                           at::ScalarType::Byte,
                                                           at::ScalarType::Bool,
                                                           at::ScalarType::ComplexHalf,
                                                           at::ScalarType::ComplexFloat,
                                                           at::ScalarType::ComplexDouble,
                                                           at::ScalarType::Float4_e2m1fn_x2,
                                                           at::ScalarType::Bits8,
                                                           at::ScalarType::Bits16,
                                                           at::ScalarType::Bits1x8,
                                                           at::ScalarType::Bits2x4,
                                                           at::ScalarType::Bits4x2,
                                                           at::ScalarType::QInt8,
                                                           at::ScalarType::QUInt8,
                                                           at::ScalarType::QInt32,
                                                           at::ScalarType::QUInt4x2,
                                                           at::ScalarType::QUInt2x4};
  return kTypes[static_cast<size_t>(dtype)];
}

}  // namespace

TensorReader::TensorReader(Source source)
    : source_(std::move(source)), tensors_(source_.tensors()) {
  for (size_t i = 0; i < tensors_.size(); ++i) indices_.emplace(tensors_[i].label(), i);
}

TensorReader TensorReader::open(const std::filesystem::path& path, const SourceOptions& options) {
  return TensorReader(Source::open(path, options));
}

std::vector<std::string> TensorReader::names() const {
  std::vector<std::string> names;
  for (const SourceTensor& tensor : tensors_) {
    if (tensor.state.empty()) names.push_back(tensor.name);
  }
  return names;
}

at::Tensor TensorReader::tensor(std::string_view name, std::string_view state) const {
  SourceTensor wanted;
  wanted.name = name;
  wanted.state = state;
  const auto found = indices_.find(wanted.label());
  if (found == indices_.end()) {
    throw UsageError("there is no tensor called '" + wanted.label() + "'");
  }
  const SourceTensor& info = tensors_[found->second];
  const auto options = at::TensorOptions().dtype(scalar_type(info.dtype));
  if (std::optional<TensorView> view = source_.view(info)) {
    return at::from_blob(
        view->data.get(), info.shape, view->strides, [data = view->data](void*) {}, options);
  }
  at::Tensor tensor = at::empty(info.shape, options);
  source_.read(info, {static_cast<std::byte*>(tensor.mutable_data_ptr()), info.bytes()});
  return tensor;
}

}  // namespace dsckpt
