// N + M: a layout that nobody has heard of is one reader. Once there is a Layout for it, the rest
// of the library takes it as it takes DeepSpeed's, and nothing of it looks for DeepSpeed's files.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/layout.h"
#include "checkpoint/shard.h"
#include "deepspeed/run_config.h"
#include "support/expect_error.h"
#include "support/hand_made.h"

namespace dsckpt {
namespace {
namespace fs = std::filesystem;

// The made-up format: a line "KIND NAME ROWS COLUMNS" for each matrix in `params`; their float32
// values end to end in `values`, of trained ones followed by those of two states; and what the
// optimizer keeps once in optimizer.pt.
bool probe_made_up(CheckpointDraft& draft) {
  return fs::exists(draft.folder.path / "params");
}

void read_made_up(CheckpointDraft& draft) {
  const fs::path& folder = draft.folder.path;
  draft.module_shards = open_shards(draft.inputs, {{{}, folder / "optimizer.pt"}}, folder);
  const TorchArchive& optimizer = draft.module_shards.front().archive;
  ParamGroup group{.params = {}, .settings = {&optimizer, optimizer.root().at("settings")}};
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
      param.step = {&optimizer, optimizer.root().at("step")};
      param.requires_grad = true;
      group.params.push_back(name);
    }
    draft.params.push_back(std::move(param));
  }
  draft.groups = {group};
}

constexpr Layout kMadeUp{"made-up", probe_made_up, read_made_up};
constexpr std::array<const Layout*, 1> kLayouts{&kMadeUp};

class ThrowawayReader : public testing::Test {
 protected:
  void SetUp() override {
    made_.write_raw("params",
                    "trained up.weight 2 3\n"
                    "frozen down.weight 1 4\n"
                    "trained head.weight 2 1\n");
    std::vector<float> numbers(3 * 6 + 4 + 3 * 2);
    std::iota(numbers.begin(), numbers.end(), 0.0F);
    made_.write_raw("values", {reinterpret_cast<const char*>(numbers.data()), 4 * numbers.size()});
    made_.write("optimizer.pt", R"({"settings": {"lr": 0.5}, "step": 7})");
  }

  Checkpoint open() {
    const TagFolder folder{.path = made_.folder(), .tag = "made-up", .shards = {}};
    return Checkpoint::open(inputs_, folder, {.tag = {}, .optimizer_states = true}, kLayouts);
  }

  std::vector<float> floats(const TensorSource& tensor) const {
    return test::floats_of(inputs_, tensor);
  }

  test::HandMade made_;
  InputFiles inputs_;
};

using Floats = std::vector<float>;

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

TEST_F(ThrowawayReader, NeedsNoneOfDeepSpeedsFiles) {
  const Checkpoint checkpoint = open();
  EXPECT_TRUE(checkpoint.model_files().empty());
  EXPECT_TRUE(checkpoint.optim_files().empty());
  EXPECT_EQ(checkpoint.facts().ds_version, "");
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
