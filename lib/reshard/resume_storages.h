// ResumeStorages: what the storages of a rank's files hold, for this process or another one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/varint.h"
#include "exec/rank_job.h"
#include "io/input_file.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// Lazy tensors by file and storage, with the inputs that they lie in. One thread at a time.
class ResumeStorages {
 public:
  // `inputs` has the files of `sources`.
  ResumeStorages(std::shared_ptr<InputFiles> inputs,
                 const std::vector<std::vector<TensorSource>>& sources);
  // Takes what write() wrote. Opens nothing. Throws CorruptError for other bytes.
  explicit ResumeStorages(VarintReader& bytes);
  // Reads the storages of one element, such as steps, which often lie in the files of another rank.
  // Throws as gather().
  void write(VarintWriter& writer);
  // The buckets and web servers of the inputs, as RankJob::Input::site().
  std::set<std::string> sites() const;

  // Copies the bytes of a storage whose bytes are here, and returns true.
  bool copy_number(size_t file, size_t storage, std::span<std::byte> out) const;
  // All of another storage, in one dimension. Opens the files that it lies in. Throws IoError, also
  // if one is not the file that was planned.
  const TensorSource& at(size_t file, size_t storage);
  // The files that are open.
  const InputFiles& inputs() const { return *files_; }

 private:
  struct Input {
    RankJob::Input file = {};
    std::vector<FilePart> parts = {};  // InputFiles::parts()
  };
  struct Storage {
    DType dtype = DType::float32;
    std::string source = {};  // by write_source(); "" without elements
    std::string number = {};  // its bytes, of one element that has been read
  };
  FileId open(FileId input);
  void read_numbers();

  std::vector<Input> inputs_;
  std::vector<std::vector<Storage>> storages_;
  std::vector<std::pair<size_t, size_t>> unread_numbers_;  // storages of one element
  std::shared_ptr<InputFiles> files_;
  std::map<FileId, FileId> opened_;  // inputs, by number -> files
  std::map<std::pair<size_t, size_t>, TensorSource> read_;
};

}  // namespace dsckpt
