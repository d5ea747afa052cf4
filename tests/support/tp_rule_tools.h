// Common parts of the tests of tensor-parallel rules. They are the samples' slices as tensors in a
// file, the bits of merged tensors, and errors by the names of their classes.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <exception>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "dsckpt/error.h"
#include "io/input_file.h"
#include "plan/copy_plan.h"
#include "plan/tensor_source.h"
#include "support/plan_runner.h"
#include "support/samples.h"
#include "support/temp_file.h"

namespace dsckpt::test {

struct SampleSlice {
  Shape shape;
  std::vector<uint16_t> numbers;  // k stands for float(k) / 7
  bool operator==(const SampleSlice&) const = default;
};

struct SampleTensor {
  Shape shape;
  std::vector<uint32_t> bits;
  bool operator==(const SampleTensor&) const = default;
};

inline Shape parse_shape(std::string_view text) {
  std::istringstream in{std::string(text)};
  return {std::istream_iterator<int64_t>(in), {}};
}

// The texts of samples.h.
inline std::vector<SampleSlice> parse_slices(std::string_view text) {
  std::vector<SampleSlice> slices;
  std::istringstream in{std::string(text)};
  for (std::string one; std::getline(in, one, ';');) {
    const size_t colon = one.find(':');
    std::istringstream elements(one.substr(colon + 1));
    slices.push_back(
        {parse_shape(one.substr(0, colon)), {std::istream_iterator<uint16_t>(elements), {}}});
  }
  return slices;
}

inline SampleTensor parse_merged(std::string_view text) {
  const size_t colon = text.find(':');
  std::istringstream elements{std::string(text.substr(colon + 1))};
  elements >> std::hex;
  return {parse_shape(text.substr(0, colon)), {std::istream_iterator<uint32_t>(elements), {}}};
}

// Writes slices into files and reads what is made of them.
class SliceFiles {
 public:
  std::vector<TensorSource> sources(const std::vector<SampleSlice>& slices) {
    std::string bytes;
    for (const SampleSlice& slice : slices) {
      for (const uint16_t number : slice.numbers) {
        append_le(bytes, static_cast<float>(number) / 7.0F);
      }
    }
    const FileId file = inputs_.add(folder_.write(std::to_string(inputs_.size()) + ".bin", bytes));
    std::vector<TensorSource> sources;
    uint64_t offset = 0;
    for (const SampleSlice& slice : slices) {
      const uint64_t size = slice.numbers.size() * sizeof(float);
      sources.push_back(TensorSource::stored({file, offset, size}, DType::float32, slice.shape));
      offset += size;
    }
    return sources;
  }

  // Runs a plan that writes the tensor.
  SampleTensor read(const TensorSource& tensor) const {
    PlanBuilder builder;
    builder.put(builder.add_output("out", tensor.nbytes()), 0, tensor);
    const std::string bytes = run_plan(builder.finish(), inputs_).at(0);
    std::vector<uint32_t> words(bytes.size() / sizeof(uint32_t));
    if (!words.empty()) std::memcpy(words.data(), bytes.data(), bytes.size());
    return {tensor.shape(), std::move(words)};
  }

  InputFiles& inputs() { return inputs_; }
  const TempFolder& folder() const { return folder_; }

 private:
  TempFolder folder_;
  InputFiles inputs_;
};

inline std::vector<Shape> shapes_of(const std::vector<SampleSlice>& slices) {
  std::vector<Shape> shapes;
  for (const SampleSlice& slice : slices) shapes.push_back(slice.shape);
  return shapes;
}

// "CorruptError: ..." of what `body` throws, "" if nothing, "foreign: ..." if it is not an Error.
inline std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const CorruptError& error) {
    return std::string("CorruptError: ") + error.what();
  } catch (const InconsistentError& error) {
    return std::string("InconsistentError: ") + error.what();
  } catch (const UnsupportedError& error) {
    return std::string("UnsupportedError: ") + error.what();
  } catch (const std::exception& error) {
    return std::string("foreign: ") + error.what();
  }
  return "";
}

inline void expect_error(std::string_view error_class, std::string_view text,
                         const std::function<void()>& body) {
  const std::string error = error_of(body);
  EXPECT_TRUE(error.starts_with(std::string(error_class) + ":")) << error;
  EXPECT_NE(error.find(text), std::string::npos) << error << "\nwithout: " << text;
}

}  // namespace dsckpt::test
