// N + M: a layout that nobody has heard of is one reader. Once there is a Layout for it, the rest
// of the library treats it like DeepSpeed's. Nothing of it looks for DeepSpeed's files.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/layout.h"
#include "checkpoint/shard.h"
#include "deepspeed/run_config.h"
#include "dsckpt/reshard.h"
#include "dsckpt/run.h"
#include "dsckpt/universal.h"
#include "dsckpt/weights.h"
#include "inspect/contents.h"
#include "inspect/summary.h"
#include "inspect/tree.h"
#include "job/source.h"
#include "support/expect_error.h"
#include "support/hand_made.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {
namespace fs = std::filesystem;

// The made-up format: a line "KIND NAME ROWS COLUMNS" for each matrix in `params`. Their float32
// values lie end to end in `values`; trained ones are followed by those of two states. run.pt has
// the values that a run has once: the model's state_dict, the optimizer's settings, the step and
// the version that shards are to be of.
bool probe_made_up(CheckpointDraft& draft) {
  return fs::exists(draft.folder.path / "params");
}

void read_made_up(CheckpointDraft& draft) {
  const fs::path& folder = draft.folder.path;
  draft.model_shards = open_shards(draft.inputs, {{{}, folder / "run.pt"}}, folder);
  const TorchArchive& run = draft.model_shards.front().archive;
  draft.wrapper_state = {&run, run.root().at("optimizer")};
  ParamGroup group{
      .params = {},
      .settings = {&run, draft.wrapper_state.value.at("param_groups").as_sequence().front()}};
  const FileId file = draft.inputs.add(folder / "values");
  uint64_t at = 0;
  const auto next = [&](const Shape& shape) {
    const Extent extent{file, at, 4 * static_cast<uint64_t>(numel(shape))};
    at = extent.end();
    return TensorSource::stored(extent, DType::float32, shape);
  };
  std::ifstream lines(folder / "params");
  std::string kind, name;
  for (Shape shape(2); lines >> kind >> name >> shape[0] >> shape[1];) {
    Param param{.name = name, .kind = ParamKind::frozen, .weight = next(shape)};
    if (kind == "trained") {
      param.kind = ParamKind::trainable;
      for (const char* key : {"exp_avg", "exp_avg_sq"}) param.states.push_back({key, next(shape)});
      param.step = {&run, run.root().at("step")};
      param.requires_grad = true;
      group.params.push_back(name);
    }
    draft.params.push_back(std::move(param));
  }
  draft.groups = {group};
}

constexpr Layout kMadeUp{"made-up", probe_made_up, read_made_up};
constexpr std::array<const Layout*, 1> kLayouts{&kMadeUp};

using Floats = std::vector<float>;

class ThrowawayReader : public testing::Test {
 protected:
  void SetUp() override {
    made_.write_raw("params",
                    "trained up.weight 2 3\n"
                    "frozen down.weight 1 4\n"
                    "trained head.weight 2 1\n");
    Floats numbers(3 * 6 + 4 + 3 * 2);
    std::iota(numbers.begin(), numbers.end(), 0.0F);
    made_.write_raw("values", {reinterpret_cast<const char*>(numbers.data()), 4 * numbers.size()});
    made_.write("run.pt",
                R"({"step": 7, "ds_version": "0.19.8",
        "module": {"up.weight": {"tensor": [2, 3]}, "down.weight": {"tensor": [1, 4], "first": 18},
                   "head.weight": {"tensor": [2, 1], "first": 22}},
        "optimizer": {"state": {}, "param_groups": [
        {"lr": 0.5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0,
         "bias_correction": true, "params": [0, 1]}]}})");
  }

  Checkpoint open() {
    const TagFolder folder{.path = made_.folder(), .tag = "made-up", .shards = {}};
    return Checkpoint::open(inputs_, folder, {.tag = {}, .optimizer_states = true}, kLayouts);
  }

  // The view that the conversions get of it.
  Source source() {
    auto inputs = std::make_shared<InputFiles>();
    const TagFolder folder{.path = made_.folder(), .tag = "made-up", .shards = {}};
    auto checkpoint = std::make_shared<const Checkpoint>(
        Checkpoint::open(*inputs, folder, {.tag = {}, .optimizer_states = true}, kLayouts));
    return source_of(made_.folder(), std::move(inputs), std::move(checkpoint));
  }

  Floats floats(const TensorSource& tensor) const { return test::floats_of(inputs_, tensor); }

  test::HandMade made_;
  InputFiles inputs_;
};

TEST_F(ThrowawayReader, ListsItsParametersThroughCheckpoint) {
  const Checkpoint checkpoint = open();
  EXPECT_EQ(checkpoint.facts().layout, "made-up");
  ASSERT_EQ(checkpoint.params().size(), 3u);
  const auto expect = [&](size_t i, const char* name, ParamKind kind, const Shape& shape,
                          const Floats& values) {
    const Param& param = checkpoint.params()[i];
    EXPECT_EQ(param.name, name);
    EXPECT_EQ(param.kind, kind);
    EXPECT_EQ(param.weight.dtype(), DType::float32);
    EXPECT_EQ(param.weight.shape(), shape);
    EXPECT_EQ(floats(param.weight), values);
    EXPECT_EQ(checkpoint.find(name), &param);
  };
  expect(0, "up.weight", ParamKind::trainable, {2, 3}, {0, 1, 2, 3, 4, 5});
  expect(1, "down.weight", ParamKind::frozen, {1, 4}, {18, 19, 20, 21});
  expect(2, "head.weight", ParamKind::trainable, {2, 1}, {22, 23});
}

TEST_F(ThrowawayReader, HasStatesStepsAndGroups) {
  const Checkpoint checkpoint = open();
  const Param& head = *checkpoint.find("head.weight");
  ASSERT_EQ(head.states.size(), 2u);
  EXPECT_EQ(head.states[0].key, "exp_avg");
  EXPECT_EQ(floats(head.states[0].value), (Floats{24, 25}));
  EXPECT_EQ(head.states[1].key, "exp_avg_sq");
  EXPECT_EQ(floats(head.states[1].value), (Floats{26, 27}));
  EXPECT_EQ(head.step.archive->scalar(head.step.value), 7.0);
  EXPECT_TRUE(checkpoint.find("down.weight")->states.empty());
  ASSERT_EQ(checkpoint.groups().size(), 1u);
  const ParamGroup& group = checkpoint.groups().front();
  EXPECT_EQ(group.params, (std::vector<std::string>{"up.weight", "head.weight"}));
  EXPECT_EQ(group.settings.value.at("lr").as_real(), 0.5);
}

// The values of all tensors and states, by name and state.
std::map<std::string, Floats> all_floats(const Source& source) {
  std::map<std::string, Floats> all;
  for (const SourceTensor& tensor : source.tensors()) {
    Floats values(static_cast<size_t>(numel(tensor.shape)));
    source.read(tensor, std::as_writable_bytes(std::span(values)));
    all[tensor.name + " " + tensor.state] = values;
  }
  return all;
}

TEST_F(ThrowawayReader, FeedsWeights) {
  const test::TempFolder out;
  run(plan_weights(source(), {.format = &kSafetensors}), out.path());
  const std::map<std::string, Floats> expected{{"up.weight ", {0, 1, 2, 3, 4, 5}},
                                               {"down.weight ", {18, 19, 20, 21}},
                                               {"head.weight ", {22, 23}}};
  EXPECT_EQ(all_floats(Source::open(out.path())), expected);
}

TEST_F(ThrowawayReader, FeedsUniversal) {
  const test::TempFolder out;
  run(plan_universal(source()), out.path() / "universal");
  InputFiles inputs;
  const auto read = [&](const std::string& name) {
    const FileId id = inputs.add(out.path() / "universal" / "zero" / name);
    const TorchArchive archive = TorchArchive::open(inputs, id);
    return test::floats_of(inputs, archive.tensor(archive.root().at("param")));
  };
  EXPECT_EQ(read("up.weight/fp32.pt"), (Floats{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(read("up.weight/exp_avg.pt"), (Floats{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(read("up.weight/exp_avg_sq.pt"), (Floats{12, 13, 14, 15, 16, 17}));
  EXPECT_EQ(read("down.weight/fp32.pt"), (Floats{18, 19, 20, 21}));
  EXPECT_EQ(read("head.weight/exp_avg_sq.pt"), (Floats{26, 27}));
}

TEST_F(ThrowawayReader, FeedsReshard) {
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    const test::TempFolder out;
    const fs::path folder = out.path() / "resharded";
    run(plan_reshard(source(), {.dp = 3, .stage = stage}), folder);
    const Source resharded = Source::open(folder, {.optimizer_states = true});
    EXPECT_EQ(resharded.facts().zero_stage, stage);
    EXPECT_EQ(resharded.facts().dp, 3u);
    EXPECT_EQ(all_floats(resharded), all_floats(source()));
  }
}

TEST_F(ThrowawayReader, FeedsInspect) {
  const Source source = this->source();
  const Contents contents = Contents::of(source->checkpoint);
  EXPECT_EQ(contents.form(), "made-up");
  EXPECT_EQ(contents.tensors().size(), 3u + 4u);
  const Summary summary = summarize(*source->inputs, contents);
  EXPECT_EQ(summary.counts.at("trainable").elements, 8);
  EXPECT_EQ(summary.counts.at("frozen").elements, 4);
  EXPECT_EQ(summary.parameters(), 12);
  EXPECT_EQ(tree_of(contents.tensors(), true).children.size(), 3u);
}

TEST_F(ThrowawayReader, NeedsNoneOfDeepSpeedsFacts) {
  const Checkpoint checkpoint = open();
  EXPECT_TRUE(checkpoint.files().optim.empty());
  EXPECT_EQ(checkpoint.facts().global_steps, std::nullopt);
  EXPECT_FALSE(checkpoint.facts().model_parallel);
  EXPECT_FALSE(checkpoint.run_config().saved);
}

TEST_F(ThrowawayReader, TakesNoFoldersOfOthers) {
  const TagFolder folder{.path = made_.folder() / "elsewhere", .tag = "other", .shards = {}};
  EXPECT_ERROR(Checkpoint::open(inputs_, folder, {}, kLayouts), InconsistentError, "elsewhere");
}

}  // namespace
}  // namespace dsckpt
