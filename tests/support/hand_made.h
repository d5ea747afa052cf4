// Files of torch.save made by hand, for tests of what reads them.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "dsckpt/dtype.h"
#include "io/input_file.h"
#include "plan/tensor_source.h"
#include "support/temp_file.h"

namespace dsckpt::test {

// A folder for files that are written down as JSON:
//
//   {"tensor": [2, 3], "first": 6, "dtype": "bfloat16"}   a tensor of 6, 7, 8, ...; float32 and
//   from
//                                                         0 on unless said otherwise
//   {"tensor": [2], "values": [1.5, "nan"]}               of these, also "inf" and "-inf"; both
//                                                         parts of complex ones
//   {"tensor": [2], "storage": "a"}                       all with the same letter are views of one
//                                                         storage, which the first one fills
//   {"tensor": [2], "requires_grad": true}                torch's flag
//   {"tensor": [0], "attributes": {"ds_id": "0_3"}}       with attributes that Python set on it
//   {"object": {"numel": 6, "start": 0}}                  an object with these attributes
//
// Other objects are dicts in their order, in which keys of digits are integers.
class HandMade {
 public:
  HandMade();

  const std::filesystem::path& folder() const { return files_.path(); }
  // Writes `name`, a path in the folder, and returns the whole path. std::out_of_range for numbers
  // beyond 4095, 256 in bfloat16.
  std::filesystem::path write(const std::string& name, const std::string& json);
  // Writes a file of safetensors: an object of tensors without attributes.
  std::filesystem::path write_safetensors(const std::string& name, const std::string& json);
  // Writes a file of these bytes, and returns its path.
  std::filesystem::path write_raw(const std::string& name, std::string_view bytes) const {
    return files_.write(name, bytes);
  }

 private:
  // Writes bytes that tensors are copied from.
  FileId keep(const std::string& bytes);

  TempFolder files_;
  TempFolder numbers_;
  InputFiles inputs_;
  std::map<DType, FileId> numbers_of_;  // files of 0, 1, 2, ...
  size_t kept_ = 0;
};

// The elements of a tensor of float32.
std::vector<float> floats_of(const InputFiles& inputs, const TensorSource& tensor);

}  // namespace dsckpt::test
