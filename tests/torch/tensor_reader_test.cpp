// The at::Tensor face against the values that the running engine held, and our .bin files as
// LibTorch reads them.
#include <ATen/core/Dict.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dsckpt/error.h"
#include "dsckpt/torch.h"
#include "dsckpt/weights.h"
#include "format/read_tensor.h"
#include "format/safetensors.h"
#include "job/job_impl.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {
namespace fs = std::filesystem;

const fs::path kCheckpoints = fs::path(DSCKPT_TESTDATA) / "checkpoints";

// The folder inside a case that has `latest`, or the tag's own.
fs::path checkpoint_in(const fs::path& folder) {
  fs::path shards;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().filename() == "latest") return entry.path().parent_path();
    if (entry.path().string().ends_with("model_states.pt")) shards = entry.path().parent_path();
  }
  return shards;
}

// The contents of `path` under each name, as bytes. An oracle: safetensors' own library wrote it.
std::map<std::string, std::vector<std::byte>> safetensors_bytes(const fs::path& path) {
  InputFiles inputs;
  const FileId id = inputs.add(path);
  std::map<std::string, std::vector<std::byte>> out;
  const SafetensorsFile file = SafetensorsFile::open(inputs, id);
  for (const SafetensorsEntry& entry : file.entries()) {
    out[entry.name] = inputs[id].read(entry.extent.offset, entry.extent.size);
  }
  return out;
}

std::vector<std::byte> bytes_of(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  std::vector<std::byte> out(dense.nbytes());
  if (!out.empty()) std::memcpy(out.data(), dense.const_data_ptr(), out.size());
  return out;
}

class EveryCheckpoint : public testing::TestWithParam<std::string> {};

std::vector<std::string> cases() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kCheckpoints)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Testdata, EveryCheckpoint, testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param; });

TEST_P(EveryCheckpoint, GivesTheTensorsTheEngineHeld) {
  const fs::path folder = kCheckpoints / GetParam();
  const auto masters = safetensors_bytes(folder / "expected" / "master.safetensors");
  const auto module = safetensors_bytes(folder / "expected" / "module.safetensors");
  const TensorReader reader = TensorReader::open(checkpoint_in(folder / "ckpt"));
  std::set<std::string> seen;
  for (const SourceTensor& param : reader.source().tensors()) {
    SCOPED_TRACE(param.name);
    const at::Tensor tensor = reader.tensor(param.name);
    EXPECT_EQ(tensor.sizes().vec(), param.shape);
    const std::string& owner = param.alias_of.empty() ? param.name : param.alias_of;
    const auto master = masters.find(owner + "|fp32");
    if (param.kind == ParamKind::trainable && master != masters.end()) {
      EXPECT_TRUE(bytes_of(tensor) == master->second);
    } else {
      ASSERT_TRUE(module.contains(param.name));
      EXPECT_TRUE(bytes_of(tensor) == module.at(param.name));
    }
    seen.insert(param.name);
  }
  // Saved with exclude_frozen_parameters, a checkpoint has less than the engine.
  const bool whole = GetParam().find("exclfrozen") == std::string::npos;
  for (const auto& entry : module) {
    EXPECT_TRUE(!whole || seen.contains(entry.first)) << entry.first;
  }
}

TEST_P(EveryCheckpoint, WritesBinFilesThatLibTorchReads) {
  const fs::path folder = checkpoint_in(kCheckpoints / GetParam() / "ckpt");
  const test::TempFolder out;
  const Source source = Source::open(folder);
  WeightsOptions options;
  options.dtype = std::nullopt;
  // torch::pickle_load knows no types that torch stores untyped.
  for (const SourceTensor& param : source.tensors()) {
    if (storage_class(param.dtype).empty()) options.exclude.push_back(param.name);
  }
  const Job job = plan_weights(source, options);
  run(job, out.path());

  const std::string text = test::read_all(out.path() / "pytorch_model.bin");
  const std::vector<char> bytes(text.begin(), text.end());
  const auto dict = torch::jit::pickle_load(bytes).toGenericDict();
  const TensorReader reader = TensorReader::open(folder);
  size_t written = 0;
  const auto data = nlohmann::json::parse(job.json());
  for (const auto& file : data["files"]) {
    for (const auto& tensor : file["tensors"]) {
      const std::string name = tensor["name"];
      SCOPED_TRACE(name);
      ++written;
      ASSERT_TRUE(dict.contains(name));
      const at::Tensor loaded = dict.at(name).toTensor();
      const at::Tensor expected = reader.tensor(name);
      EXPECT_EQ(loaded.scalar_type(), expected.scalar_type());
      EXPECT_EQ(loaded.sizes(), expected.sizes());
      EXPECT_TRUE(bytes_of(loaded) == bytes_of(expected));
    }
  }
  EXPECT_EQ(dict.size(), written);
}

// A parameter that lies in one shard and one that is cut over two.
struct Samples {
  std::string whole;
  std::string cut;
};

Samples samples_of(const Source& source) {
  Samples samples;
  for (const SourceTensor& param : source.tensors()) {
    if (param.kind != ParamKind::trainable || numel(param.shape) < 2) continue;
    (source.view(param) ? samples.whole : samples.cut) = param.name;
  }
  return samples;
}

TEST(TensorReader, ViewsWhatLiesInOneShardWithoutACopy) {
  const TensorReader reader = TensorReader::open(kCheckpoints / "z2_bf16_w2" / "ckpt");
  const Samples samples = samples_of(reader.source());
  ASSERT_FALSE(samples.whole.empty());
  ASSERT_FALSE(samples.cut.empty());
  EXPECT_EQ(reader.tensor(samples.whole).const_data_ptr(),
            reader.tensor(samples.whole).const_data_ptr());
  EXPECT_NE(reader.tensor(samples.cut).const_data_ptr(),
            reader.tensor(samples.cut).const_data_ptr());
}

TEST(TensorReader, KeepsViewsAliveAndTheFileUntouched) {
  const fs::path folder = kCheckpoints / "z2_bf16_w2" / "ckpt";
  std::string name;
  at::Tensor tensor;
  std::vector<std::byte> before;
  {
    const TensorReader reader = TensorReader::open(folder);
    name = samples_of(reader.source()).whole;
    tensor = reader.tensor(name);
    before = bytes_of(tensor);
  }
  EXPECT_TRUE(bytes_of(tensor) == before);
  tensor.fill_(7);
  EXPECT_TRUE(bytes_of(TensorReader::open(folder).tensor(name)) == before);
}

TEST(TensorReader, RefusesAnUnknownName) {
  const TensorReader reader = TensorReader::open(kCheckpoints / "z2_bf16_w2" / "ckpt");
  EXPECT_THROW(reader.tensor("no.such.tensor"), UsageError);
}

}  // namespace
}  // namespace dsckpt
