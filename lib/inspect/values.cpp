#include "inspect/values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/kernels.h"
#include "base/text.h"
#include "base/widen.h"
#include "dsckpt/error.h"
#include "format/read_tensor.h"

namespace dsckpt {
namespace {

constexpr int64_t kPieceElements = 64 << 10;

// One part between commas.
struct Index {
  std::optional<int64_t> at;  // unset for a range
  std::optional<int64_t> begin;
  std::optional<int64_t> end;
};

[[noreturn]] void throw_bad_slice(std::string_view slice, const std::string& why) {
  throw UsageError("'" + std::string(slice) + "' is not a slice: " + why)
      .with_hint("write it as in Python: 3, -1, 2:5, :8, ... with commas between dimensions");
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

int64_t number(std::string_view slice, std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw_bad_slice(slice, "'" + std::string(text) + "' is not a number");
  }
  return value;
}

Index parse_index(std::string_view slice, std::string_view part) {
  const size_t colon = part.find(':');
  if (colon == std::string_view::npos) return {number(slice, part), {}, {}};
  Index index;
  const std::string_view begin = trimmed(part.substr(0, colon));
  const std::string_view end = trimmed(part.substr(colon + 1));
  if (end.find(':') != std::string_view::npos) throw_bad_slice(slice, "steps are not read");
  if (!begin.empty()) index.begin = number(slice, begin);
  if (!end.empty()) index.end = number(slice, end);
  return index;
}

std::vector<Index> parse_slice(std::string_view slice, size_t dims) {
  std::string_view text = trimmed(slice);
  if (text.starts_with('[') && text.ends_with(']')) {
    text = trimmed(text.substr(1, text.size() - 2));
  }
  std::vector<Index> indices;
  std::optional<size_t> ellipsis;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view part = trimmed(text.substr(0, comma));
    text = trimmed(text.substr(std::min(comma + 1, text.size())));
    if (part == "...") {
      if (ellipsis) throw_bad_slice(slice, "more than one '...'");
      ellipsis = indices.size();
    } else {
      indices.push_back(parse_index(slice, part));
    }
  }
  if (indices.size() > dims) {
    throw_bad_slice(
        slice, counted(indices.size(), "index", "indices") + " for " + counted(dims, "dimension"));
  }
  const size_t at = ellipsis.value_or(indices.size());
  indices.insert(indices.begin() + static_cast<std::ptrdiff_t>(at), dims - indices.size(), Index{});
  return indices;
}

template <typename Number>
std::string number_text(Number value) {
  std::array<char, 64> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return std::string(text.data(), end);
}

// Python marks every float, so that it does not look like an integer.
std::string with_point(std::string text) {
  const bool integer = text.find_first_not_of("-0123456789") == std::string::npos;
  return integer ? text + ".0" : text;
}

template <typename Real>
std::string real_text(Real value) {
  if (std::isnan(value)) return "nan";
  return with_point(number_text(value));
}

// std::to_chars has no types below 32 bits. So this searches for the fewest digits that round to
// the same element.
std::string small_float_text(DType dtype, const std::byte* at) {
  std::array<std::byte, sizeof(float)> wide{};
  convert(dtype, DType::float32, at, wide.data(), 1);
  const float value = load_le<float>(wide.data());
  if (!std::isfinite(value) || !can_convert(DType::float32, dtype)) return real_text(value);
  const size_t size = size_of(dtype);
  for (int digits = 1; digits < 9; ++digits) {
    std::array<char, 64> text{};
    const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value,
                                            std::chars_format::general, digits);
    const std::string_view written(text.data(), static_cast<size_t>(end - text.data()));
    const auto read = static_cast<float>(real_of(written).value_or(0));
    std::array<std::byte, sizeof(float)> narrow{};
    std::array<std::byte, sizeof(float)> back{};
    store_le(back.data(), read);
    convert(DType::float32, dtype, back.data(), narrow.data(), 1);
    if (std::equal(narrow.begin(), narrow.begin() + static_cast<std::ptrdiff_t>(size), at)) {
      return with_point(std::string(text.data(), end));
    }
  }
  return real_text(value);
}

template <typename Real>
std::string complex_text(Real real, Real imaginary) {
  const bool negative = std::signbit(imaginary);
  return "(" + real_text(real) + (negative ? "" : "+") + real_text(imaginary) + "j)";
}

class Writer {
 public:
  Writer(const InputFiles& inputs, const TensorSource& tensor, int64_t edge,
         const std::function<void(std::string_view)>& write)
      : inputs_(&inputs), tensor_(&tensor), shape_(tensor.shape()), edge_(edge), write_(&write) {}

  void run() {
    if (shape_.empty()) {
      (*write_)(element(0) + "\n");
      return;
    }
    if (tensor_->numel() == 0) {
      (*write_)("[]\n");
      return;
    }
    dimension(0, 0);
    (*write_)("\n");
  }

 private:
  bool shortens(size_t dim) const { return edge_ > 0 && shape_[dim] > 2 * edge_; }

  void dimension(size_t dim, int64_t first) {
    (*write_)("[");
    const bool innermost = dim + 1 == shape_.size();
    const int64_t below =
        numel({shape_.begin() + static_cast<std::ptrdiff_t>(dim) + 1, shape_.end()});
    const std::string gap = innermost ? ", " : ",\n" + std::string(dim + 1, ' ');
    for (int64_t i = 0; i < shape_[dim]; ++i) {
      if (i > 0) (*write_)(gap);
      if (shortens(dim) && i == edge_) {
        (*write_)("..." + gap);
        i = shape_[dim] - edge_;
      }
      if (innermost) {
        (*write_)(element(first + i));
      } else {
        dimension(dim + 1, first + i * below);
      }
    }
    (*write_)("]");
  }

  // Reads ahead only if all elements are contiguous.
  std::string element(int64_t at) {
    const size_t size = size_of(tensor_->dtype());
    if (at < begin_ || at >= end_) {
      const int64_t most = edge_ > 0 ? std::max<int64_t>(edge_, 1) : kPieceElements;
      begin_ = at;
      end_ = at + std::min(most, tensor_->numel() - at);
      buffer_.resize(static_cast<size_t>(end_ - begin_) * size);
      read_elements(*inputs_, *tensor_, begin_, end_ - begin_, buffer_);
    }
    return element_text(tensor_->dtype(), buffer_.data() + static_cast<size_t>(at - begin_) * size);
  }

  const InputFiles* inputs_;
  const TensorSource* tensor_;
  Shape shape_;
  int64_t edge_;
  const std::function<void(std::string_view)>* write_;
  std::vector<std::byte> buffer_;
  int64_t begin_ = 0;
  int64_t end_ = 0;
};

}  // namespace

TensorSource sliced(const TensorSource& tensor, std::string_view slice) {
  const std::vector<Index> indices = parse_slice(slice, tensor.shape().size());
  TensorSource out = tensor;
  Shape shape;
  for (size_t i = 0; i < indices.size(); ++i) {
    const int64_t size = tensor.shape()[i];
    const auto dim = static_cast<int64_t>(i);
    const auto from_front = [&](int64_t at) { return at < 0 ? at + size : at; };
    if (indices[i].at) {
      const int64_t at = from_front(*indices[i].at);
      if (at < 0 || at >= size) {
        throw_bad_slice(slice, std::to_string(*indices[i].at) + " is outside dimension " +
                                   std::to_string(i) + ", which has " + std::to_string(size));
      }
      out = out.narrow(dim, at, 1);
    } else {
      const int64_t begin = std::clamp<int64_t>(from_front(indices[i].begin.value_or(0)), 0, size);
      const int64_t end =
          std::clamp<int64_t>(from_front(indices[i].end.value_or(size)), begin, size);
      out = out.narrow(dim, begin, end - begin);
      shape.push_back(end - begin);
    }
  }
  return out.view(std::move(shape));
}

std::string element_text(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::float64:
      return real_text(load_le<double>(at));
    case DType::float32:
      return real_text(load_le<float>(at));
    case DType::float16:
    case DType::bfloat16:
    case DType::float8_e4m3fn:
    case DType::float8_e5m2:
    case DType::float8_e4m3fnuz:
    case DType::float8_e5m2fnuz:
    case DType::float8_e8m0fnu:
      return small_float_text(dtype, at);
    case DType::int64:
      return number_text(load_le<int64_t>(at));
    case DType::int32:
      return number_text(load_le<int32_t>(at));
    case DType::int16:
      return number_text(load_le<int16_t>(at));
    case DType::int8:
      return number_text(static_cast<int>(load_le<int8_t>(at)));
    case DType::uint64:
      return number_text(load_le<uint64_t>(at));
    case DType::uint32:
      return number_text(load_le<uint32_t>(at));
    case DType::uint16:
      return number_text(load_le<uint16_t>(at));
    case DType::uint8:
      return number_text(static_cast<unsigned>(load_le<uint8_t>(at)));
    case DType::boolean:
      return *at == std::byte{0} ? "False" : "True";
    case DType::complex32: {
      std::array<std::byte, 2 * sizeof(float)> wide{};
      convert(DType::float16, DType::float32, at, wide.data(), 2);
      return complex_text(load_le<float>(wide.data()), load_le<float>(wide.data() + sizeof(float)));
    }
    case DType::complex64:
      return complex_text(load_le<float>(at), load_le<float>(at + sizeof(float)));
    case DType::complex128:
      return complex_text(load_le<double>(at), load_le<double>(at + sizeof(double)));
    default:
      return element_text(real_part(dtype), at);
  }
}

void write_values(const InputFiles& inputs, const TensorSource& tensor, int64_t edge,
                  const std::function<void(std::string_view)>& write) {
  Writer(inputs, tensor, edge, write).run();
}

}  // namespace dsckpt
