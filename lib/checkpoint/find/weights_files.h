// Files of weights by their names, as torch.save, safetensors and huggingface_hub write them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/find/folders.h"
#include "dsckpt/error.h"

namespace dsckpt {

// An index of sharded weights, as huggingface_hub writes it.
struct WeightsIndex {
  std::map<std::string, std::string> files;  // tensor name -> file name
  std::optional<uint64_t> total_size;        // metadata.total_size: bytes of all tensors
};

// The files of one model, in one form.
struct WeightsSet {
  std::string stem = {};    // "model" of "model-00001-of-00003.safetensors"
  std::string ending = {};  // ".safetensors"
  bool is_split = false;
  std::optional<std::filesystem::path> index = {};
  std::vector<std::filesystem::path> files = {};
  std::string name = {};  // for --model

  std::filesystem::path first() const { return index ? *index : files.front(); }
};

// Each form of each model in a folder, in transformers' order. Throws IoError, and the errors of an
// index that cannot be read.
std::vector<WeightsSet> weights_sets(Folders& folders, const std::filesystem::path& folder);
// Files *.safetensors of names that nobody knows are the parts of one model.
void join_unknown(std::vector<WeightsSet>& sets);
// Leaves the one to read of `sets` where all are forms of one model. An adapter is beside its base
// model. Returns a note with the forms that are left out.
std::string take_first_form(std::vector<WeightsSet>& sets);

bool is_weights_index(const std::filesystem::path& path);
// True if a file has a name that frameworks give to weights, or to their index.
bool is_weights_name(const std::filesystem::path& path);
// WeightsSet::stem of the set that the file is of, by its name; "" for other files.
std::string weights_stem(const std::filesystem::path& file);
// Throws IoError, and CorruptError if the file is not an index.
WeightsIndex read_weights_index(const std::filesystem::path& path);

// All files of the same count as `path` by its name, those that are not there, too; `path` where it
// has no number. Counted from 1, or from 0 where there is a 0.
std::vector<std::filesystem::path> with_siblings(const std::filesystem::path& path);
// Missing files that names in `paths` imply: for "model-00001-of-00003.x" those of the other
// numbers, in the same folder. By path.
std::vector<std::filesystem::path> missing_siblings(
    const std::vector<std::filesystem::path>& paths);

// The error for a name of a model in files that have one without a name.
UsageError no_such_model(const std::string& name, const std::string& display);

}  // namespace dsckpt
