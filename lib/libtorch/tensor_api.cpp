#include "libtorch/tensor_api.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>
#include <tbb/parallel_for.h>

#include <array>
#include <map>
#include <mutex>

#include "base/error.h"
#include "format/read_tensor.h"
#include "io/mapped_file.h"

namespace dsckpt {
namespace {

constexpr int64_t kGatherElements = 1 << 20;

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
                                                           at::ScalarType::ComplexDouble};
  return kTypes[static_cast<size_t>(dtype)];
}

}  // namespace

struct TensorReader::Impl {
  explicit Impl(const std::filesystem::path& path, const OpenOptions& options)
      : checkpoint(Checkpoint::open(inputs, path, options)) {}

  InputFiles inputs;
  Checkpoint checkpoint;
  std::mutex mutex;
  std::map<FileId, std::shared_ptr<MappedFile>> mapped;

  std::shared_ptr<MappedFile> map(FileId id) {
    const std::lock_guard lock(mutex);
    std::shared_ptr<MappedFile>& file = mapped[id];
    if (!file) file = MappedFile::map(inputs[id]);
    return file;
  }

  at::Tensor view(const StridedView& view) {
    const std::shared_ptr<MappedFile> file = map(view.extent.file);
    return at::from_blob(
        file->data() + view.extent.offset, view.shape, view.strides, [file](void*) {},
        at::TensorOptions().dtype(scalar_type(view.dtype)));
  }

  at::Tensor gather(const TensorSource& source) {
    at::Tensor tensor =
        at::empty(source.shape(), at::TensorOptions().dtype(scalar_type(source.dtype())));
    auto* const data = static_cast<std::byte*>(tensor.mutable_data_ptr());
    const uint64_t item = size_of(source.dtype());
    const int64_t chunks = (source.numel() + kGatherElements - 1) / kGatherElements;
    tbb::parallel_for(int64_t{0}, chunks, [&](int64_t chunk) {
      const int64_t first = chunk * kGatherElements;
      const int64_t count = std::min(kGatherElements, source.numel() - first);
      read_elements(
          inputs, source, first, count,
          {data + static_cast<uint64_t>(first) * item, static_cast<uint64_t>(count) * item});
    });
    return tensor;
  }
};

TensorReader::TensorReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TensorReader::TensorReader(TensorReader&&) noexcept = default;
TensorReader& TensorReader::operator=(TensorReader&&) noexcept = default;
TensorReader::~TensorReader() = default;

TensorReader TensorReader::open(const std::filesystem::path& path, const OpenOptions& options) {
  return TensorReader(std::make_unique<Impl>(path, options));
}

const Checkpoint& TensorReader::checkpoint() const {
  return impl_->checkpoint;
}

std::vector<std::string> TensorReader::names() const {
  std::vector<std::string> names;
  for (const Param& param : impl_->checkpoint.params()) names.push_back(param.name);
  return names;
}

at::Tensor TensorReader::tensor(std::string_view name) const {
  const Param* param = impl_->checkpoint.find(name);
  if (param == nullptr) throw UsageError("there is no tensor called '" + std::string(name) + "'");
  return in_context({.tensor = param->name}, [&] {
    const std::optional<StridedView> view = param->weight.as_strided();
    // torch asks for pointers that are multiples of the element's size.
    const bool viewable = view && view->extent.size > 0 &&
                          view->extent.offset % size_of(view->dtype) == 0 &&
                          impl_->inputs[view->extent.file].encoding() == Encoding::plain;
    return viewable ? impl_->view(*view) : impl_->gather(param->weight);
  });
}

}  // namespace dsckpt
