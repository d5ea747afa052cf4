// Weights in safetensors files, where each rank has written its own part: torch's
// HuggingFaceStorageWriter with save_distributed.
//
// torch/distributed/checkpoint/filesystem.py _write_files_from_queue, hf_storage.py read_metadata,
// _hf_utils.py. FORMATS.md has what is in the header.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/boxes.h"
#include "format/safetensors.h"
#include "io/input_file.h"

namespace dsckpt {

// True if the header says where its tensors belong in larger ones.
bool has_chunks(const SafetensorsFile& file);

// The chunks of all files of a folder.
class WeightsChunks {
 public:
  // Those of a file that has_chunks(). Throws CorruptError where its header does not say of each of
  // its tensors, in numbers, where it begins.
  void add(const InputFile& input, const SafetensorsFile& file);

  bool empty() const { return tensors_.empty(); }

  struct Whole {
    std::string name;
    TensorSource value;
  };
  // The whole tensors, in the order in which their first chunks came. A tensor ends where its last
  // chunk does: nothing else tells. Copies of a chunk are compared when the plan runs. Throws
  // InconsistentError for chunks of several types or numbers of dimensions, and what join_boxes()
  // throws, by the first file that has a chunk.
  std::vector<Whole> take() &&;

 private:
  struct Tensor {
    std::string name;
    std::string display;  // the file that its first chunk is in
    DType dtype = DType::float32;
    Shape shape;  // as far as the chunks reach
    // Copies of each box, by its offsets and sizes.
    std::map<std::pair<Shape, Shape>, std::vector<TensorSource>> boxes;
  };
  void add_chunk(Tensor& tensor, const InputFile& input, const SafetensorsEntry& entry,
                 Shape offsets, TensorSource value);

  std::vector<Tensor> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

}  // namespace dsckpt
