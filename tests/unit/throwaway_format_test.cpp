// A format of weights is one function and one row: a made-up one is fed by every reader.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "dsckpt/weights.h"
#include "format/safetensors.h"
#include "io/input_file.h"
#include "job/source.h"
#include "support/temp_file.h"
#include "weights/weights_format.h"

namespace dsckpt {
namespace {
namespace fs = std::filesystem;

// Each tensor as a line with its name and its number of bytes, then the bytes.
std::string line_of(const OutputTensor& tensor) {
  return tensor.name + " " + std::to_string(tensor.source.nbytes()) + "\n";
}

void lay_out_lines(PlanBuilder& plan, std::string path, std::span<const OutputTensor> tensors,
                   const std::map<std::string, std::string>& /*metadata*/) {
  uint64_t size = 0;
  for (const OutputTensor& tensor : tensors) {
    size += line_of(tensor).size() + tensor.source.nbytes();
  }
  const OutputId out = plan.add_output(std::move(path), size);
  uint64_t at = 0;
  for (const OutputTensor& tensor : tensors) {
    plan.put_literal(out, at, line_of(tensor));
    at += line_of(tensor).size();
    if (tensor.source.nbytes() > 0) plan.put(out, at, tensor.source);
    at += tensor.source.nbytes();
  }
}

const WeightsFormat kLines{.name = "lines",
                           .stem = "model",
                           .extension = ".lines",
                           .index_name = "model.lines.index.json",
                           .shares_storage = true,
                           .lay_out = lay_out_lines};

std::map<std::string, std::string> read_lines(const fs::path& path) {
  const std::string text = test::read_all(path);
  std::map<std::string, std::string> tensors;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    const std::string line = text.substr(at, end - at);
    const size_t space = line.rfind(' ');
    const size_t bytes = std::stoull(line.substr(space + 1));
    tensors[line.substr(0, space)] = text.substr(end + 1, bytes);
    at = end + 1 + bytes;
  }
  return tensors;
}

// The folder in a case of testdata that a program would name.
fs::path checkpoint_in(const fs::path& folder) {
  fs::path shards;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().filename() == "latest") return entry.path().parent_path();
    if (entry.path().string().ends_with("model_states.pt")) shards = entry.path().parent_path();
  }
  return shards;
}

// The running engine's values are there under the same names, bit for bit.
void expect_masters(const fs::path& folder, const std::map<std::string, std::string>& written) {
  constexpr std::string_view kSuffix = "|fp32";
  InputFiles inputs;
  const FileId id = inputs.add(folder / "expected" / "master.safetensors");
  size_t compared = 0;
  const SafetensorsFile masters = SafetensorsFile::open(inputs, id);
  for (const SafetensorsEntry& entry : masters.entries()) {
    if (!entry.name.ends_with(kSuffix)) continue;
    const std::string name = entry.name.substr(0, entry.name.size() - kSuffix.size());
    const auto found = written.find(name);
    ASSERT_NE(found, written.end()) << name;
    const std::vector<std::byte> bytes = inputs[id].read(entry.extent.offset, entry.extent.size);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), found->second.begin(), found->second.end(),
                           [](std::byte a, char b) { return a == static_cast<std::byte>(b); }))
        << name;
    ++compared;
  }
  EXPECT_GT(compared, 0u);
}

TEST(ThrowawayFormat, IsFedByEveryReader) {
  std::set<std::string> layouts;
  for (const auto& entry : fs::directory_iterator(fs::path(DSCKPT_TESTDATA) / "checkpoints")) {
    SCOPED_TRACE(entry.path().filename().string());
    const Source source = Source::open(checkpoint_in(entry.path() / "ckpt"));
    layouts.insert(source.facts().layout);
    const test::TempFolder out;
    run(plan_weights(source, {.format = &kLines, .dtype = std::nullopt}), out.path());
    const auto written = read_lines(out.path() / "model.lines");
    EXPECT_EQ(written.size(), source.tensors().size());
    if (!source.facts().ds_version.empty() &&
        fs::exists(entry.path() / "expected/master.safetensors")) {
      expect_masters(entry.path(), written);
    }
  }
  EXPECT_EQ(layouts, (std::set<std::string>{"zero-0", "zero-1/2", "zero-3"}));
}

TEST(ThrowawayFormat, IsFedByModelsThatWereSplit) {
  size_t tried = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(DSCKPT_TESTDATA) / "model_parallel")) {
    if (!fs::is_directory(entry.path() / "ckpt")) continue;
    SCOPED_TRACE(entry.path().filename().string());
    const Source source = Source::open(checkpoint_in(entry.path() / "ckpt"));
    const test::TempFolder out;
    run(plan_weights(source, {.format = &kLines}), out.path());
    EXPECT_EQ(read_lines(out.path() / "model.lines").size(), source.tensors().size());
    ++tried;
  }
  EXPECT_GT(tried, 20u);
}

TEST(ThrowawayFormat, IsFedByFilesOfWeights) {
  const fs::path file =
      fs::path(DSCKPT_TESTDATA) / "checkpoints/z2_bf16_w2/expected/module.safetensors";
  const Source source = Source::open(file);
  EXPECT_TRUE(source.facts().from_weights);
  const test::TempFolder out;
  run(plan_weights(source, {.format = &kLines}), out.path());
  EXPECT_EQ(read_lines(out.path() / "model.lines").size(), source.tensors().size());
}

}  // namespace
}  // namespace dsckpt
