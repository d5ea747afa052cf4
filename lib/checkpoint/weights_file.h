// One file of weights, as weights.h opens it.
#pragma once

#include <filesystem>
#include <memory>

#include "format/safetensors.h"
#include "format/torch_archive.h"
#include "io/input_file.h"

namespace dsckpt {

// Exactly one of the two is set.
struct WeightsFile {
  std::filesystem::path path;
  FileId id = 0;
  std::unique_ptr<TorchArchive> archive;
  std::unique_ptr<SafetensorsFile> safetensors;
};

}  // namespace dsckpt
