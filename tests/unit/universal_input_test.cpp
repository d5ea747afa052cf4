// Universal checkpoints, made of the test checkpoints, as an input: the optimizer's states and
// groups that the running engine had are what must be read. Weights and errors are tested from the
// command line (oracle/universal_input_test.py, cli/unusual_universal_input_test.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/kernels.h"
#include "checkpoint/checkpoint.h"
#include "dsckpt/universal.h"
#include "format/read_tensor.h"
#include "format/safetensors.h"
#include "job/source.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {
namespace fs = std::filesystem;

using Bytes = std::vector<std::byte>;

// The engine's values, written by safetensors' own library: "NAME|STATE" -> bytes.
std::map<std::string, Bytes> live_states(const fs::path& folder) {
  InputFiles inputs;
  const FileId id = inputs.add(folder / "expected" / "master.safetensors");
  std::map<std::string, Bytes> states;
  const SafetensorsFile file = SafetensorsFile::open(inputs, id);
  for (const SafetensorsEntry& entry : file.entries()) {
    states[entry.name] = inputs[id].read(entry.extent.offset, entry.extent.size);
  }
  return states;
}

Bytes read(const InputFiles& inputs, const TensorSource& source) {
  Bytes bytes(source.nbytes());
  read_elements(inputs, source, 0, source.numel(), bytes);
  return bytes;
}

// Notes are in float32, also of what the engine keeps in 16 bits.
Bytes read_float32(const InputFiles& inputs, const TensorSource& source) {
  const Bytes stored = read(inputs, source);
  const auto count = static_cast<size_t>(source.numel());
  Bytes bytes(count * sizeof(float));
  convert(source.dtype(), DType::float32, stored.data(), bytes.data(), count);
  return bytes;
}

// A test checkpoint and the universal one made of it.
class Case {
 public:
  explicit Case(fs::path source) : folder(std::move(source)) {
    std::ifstream(folder / "case.json") >> facts;
    const fs::path shards = folder / std::string(facts["load_dir"]);
    const Source native = Source::open(shards, {.optimizer_states = true});
    run(plan_universal(native), universal());
    for (const Param& param : native->checkpoint->params()) {
      native_steps[param.name] = step_of(param);
    }
  }

  Checkpoint open() { return open(scratch_.path()); }
  fs::path universal() const { return scratch_.path() / "universal"; }
  int stage() const { return facts["stage"]; }

  fs::path folder;
  nlohmann::json facts;
  InputFiles inputs;
  std::map<std::string, std::optional<double>> native_steps;

 private:
  Checkpoint open(const fs::path& path) {
    return Checkpoint::open(inputs, path, {.tag = {}, .optimizer_states = true});
  }
  test::TempFolder scratch_;
};

template <typename Check>
void for_each_case(Check&& check) {
  std::set<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(fs::path(DSCKPT_TESTDATA) / "checkpoints")) {
    if (fs::exists(entry.path() / "case.json")) folders.insert(entry.path());
  }
  EXPECT_GT(folders.size(), 50u);
  for (const fs::path& folder : folders) {
    SCOPED_TRACE(folder.filename().string());
    Case one(folder);
    check(one);
  }
}

void expect_live_states(Case& one, const Checkpoint& checkpoint) {
  EXPECT_EQ(checkpoint.facts().layout, "universal");
  EXPECT_EQ(checkpoint.facts().zero_stage, one.stage());
  EXPECT_EQ(checkpoint.facts().mesh.dp, one.facts["world_size"].get<uint32_t>());
  const std::map<std::string, Bytes> live = live_states(one.folder);
  std::set<std::string> found;
  for (const Param& param : checkpoint.params()) {
    if (param.kind != ParamKind::trainable || !param.alias_of.empty()) continue;
    SCOPED_TRACE(param.name);
    const auto check = [&](const std::string& key, const TensorSource& value) {
      EXPECT_EQ(value.shape(), param.weight.shape()) << key;
      const auto expected = live.find(param.name + "|" + key);
      if (expected == live.end()) return;  // not every state of every optimizer was noted
      found.insert(expected->first);
      EXPECT_EQ(read_float32(one.inputs, value), expected->second) << key;
    };
    check("fp32", param.weight);
    std::vector<std::string> keys;
    for (const ParamState& state : param.states) {
      check(state.key, state.value);
      keys.push_back(state.key);
    }
    if (keys.size() > 1) {
      EXPECT_EQ(keys[0], "exp_avg");
      EXPECT_EQ(keys[1], "exp_avg_sq");
    }
    EXPECT_EQ(step_of(param), one.native_steps.at(param.name));
  }
  EXPECT_EQ(found.size(), live.size());
}

void expect_groups(const Case& one, const Checkpoint& checkpoint) {
  // Runs of transformers did not note their groups; DeepSpeed makes other groups for Muon.
  if (!one.facts.contains("param_groups") || one.facts["optimizer"] == "muon") return;
  const std::vector<ParamGroup>& groups = checkpoint.groups();
  if (one.stage() == 0) {
    EXPECT_TRUE(groups.empty());
    return;
  }
  const nlohmann::json& expected = one.facts["param_groups"];
  ASSERT_EQ(groups.size(), expected.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    std::vector<std::string> names;
    for (const std::string name : expected[g]["names"]) {
      const Param* param = checkpoint.find(name);
      ASSERT_NE(param, nullptr) << name;
      if (param->kind == ParamKind::trainable) names.push_back(name);
    }
    EXPECT_EQ(groups[g].params, names);
    if (checkpoint.facts().elastic) continue;
    ASSERT_NE(groups[g].settings.archive, nullptr);
    const auto number = [&](std::string_view key) {
      return groups[g].settings.value.at(key).as_real();
    };
    // Without one, or with null, it is the optimizer's default.
    const auto decay = expected[g].find("weight_decay");
    if (decay != expected[g].end() && decay->is_number()) {
      EXPECT_EQ(number("weight_decay"), decay->get<double>());
    }
    EXPECT_EQ(number("lr"), one.facts["lr_at_save"][g].get<double>());
  }
}

TEST(UniversalInput, HasTheStatesAndGroupsOfTheEngine) {
  for_each_case([](Case& one) {
    const Checkpoint checkpoint = one.open();
    expect_live_states(one, checkpoint);
    expect_groups(one, checkpoint);
  });
}

TEST(UniversalInput, HasEveryFile) {
  for (const char* name : {"z0_bf16_w2", "z1_fp32_full_w4", "z3_fp32_full_w2"}) {
    SCOPED_TRACE(name);
    Case one(fs::path(DSCKPT_TESTDATA) / "checkpoints" / name);
    const Checkpoint checkpoint = one.open();
    std::set<fs::path> covered;
    for (const CheckpointFile& file : checkpoint.archives()) covered.insert(file.path);
    std::set<fs::path> expected;
    for (const auto& entry : fs::recursive_directory_iterator(one.universal())) {
      if (!entry.is_directory()) expected.insert(entry.path());
    }
    EXPECT_EQ(covered, expected);
  }
}

}  // namespace
}  // namespace dsckpt
