// Which of several saved states is meant: a table of what lies in a folder and of what follows.
#include "checkpoint/find/choose.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "dsckpt/error.h"
#include "support/expect_error.h"

namespace dsckpt {
namespace {

constexpr const char* kPath = "/out";

// A state of ZeRO in /out/NAME.
SavedState state(const std::string& name, std::optional<int64_t> step,
                 std::vector<std::string> params = {"a", "b"}) {
  SavedState made{.folder = std::string(kPath) + "/" + name};
  made.named = made.folder;
  made.tag = made.folder.filename().string();
  made.step = step;
  for (std::string& param : params) made.params.emplace_back(std::move(param), Shape{2});
  return made;
}

SavedState latest(const std::string& tag, std::optional<int64_t> step,
                  std::vector<std::string> params = {"a", "b"}) {
  SavedState made = state(tag, step, std::move(params));
  made.named = kPath;
  made.is_latest = true;
  return made;
}

std::string chosen(std::vector<SavedState> states) {
  return choose(kPath, std::move(states)).state.folder.lexically_relative(kPath).string();
}

TEST(Choose, TheHighestStepThatFilesHold) {
  EXPECT_EQ(chosen({state("checkpoint-9", 9), state("checkpoint-10", 10)}), "checkpoint-10");
  // Names are not steps.
  EXPECT_EQ(chosen({state("epoch-9", 3), state("epoch-10", 2)}), "epoch-9");
  EXPECT_EQ(chosen({state("val_loss=1.5-step=2.ckpt", 2), state("val_loss=0.3-step=5.ckpt", 5)}),
            "val_loss=0.3-step=5.ckpt");
  EXPECT_EQ(chosen({state("best_model", 2), state("checkpoint-5", 5)}), "checkpoint-5");
  EXPECT_EQ(chosen({state("last.ckpt", 7), state("best", 2), state("20", 20)}), "20");
  EXPECT_EQ(chosen({state("a/step1", 1), state("a/step2", 2)}), "a/step2");
}

TEST(Choose, NothingAmongSeveralModels) {
  const auto refused = [](std::vector<SavedState> states) {
    EXPECT_ERROR(chosen(states), InconsistentError, "holds");
    std::vector<SavedState> reversed(states.rbegin(), states.rend());
    EXPECT_ERROR(chosen(reversed), InconsistentError, "holds");
  };
  refused({state("actor", 3), state("critic", 3)});
  refused({state("actor", 3), state("critic", 5)});
  refused({state("step_3/actor", 3), state("step_3/critic", 3)});
  refused({state("step_3/actor", 3), state("step_4/critic", 4)});
  refused({state("pytorch_model", 3), state("pytorch_model_1", 4)});
  refused({state("global_step3", 3), state("global_step3_ema", 3)});
  refused({state("run1/step5", 5), state("run2/step9", 9)});
  refused({state("before_tuning", 1), state("after_tuning", 2)});
  // Names of ages, but other parameters.
  refused({state("step1", 1, {"a"}), state("step2", 2, {"a", "b"})});
  // One step twice, and no step.
  refused({state("step1", 4), state("step2", 4)});
  refused({state("step1", std::nullopt), state("step2", 4)});
  SavedState dcp = state("step2", 2);
  dcp.kind = StateKind::dcp;
  dcp.dcp_metadata = {dcp.folder / ".metadata"};
  refused({state("step1", 1), dcp});
}

TEST(Choose, TheListNamesStatesModelsAndTheOption) {
  try {
    chosen({state("step_3/actor", 3), state("step_3/critic", 3)});
    FAIL() << "nothing is thrown";
  } catch (const InconsistentError& error) {
    EXPECT_STREQ(error.what(),
                 "/out: holds 2 checkpoints, which may be several models:\n"
                 "  step_3/actor   ZeRO, step 3\n"
                 "  step_3/critic  ZeRO, step 3");
    EXPECT_EQ(error.hint(), "--model actor reads the newest of one of them");
  }
}

TEST(Choose, WhatLatestNames) {
  EXPECT_EQ(chosen({latest("global_step5", 5), state("global_step9", 9)}), "global_step5");
  // Not the last of two models of one step.
  EXPECT_ERROR(chosen({latest("pytorch_model_1", 3), state("pytorch_model", 3)}), InconsistentError,
               "several models");
  EXPECT_ERROR(chosen({latest("discriminator", 3, {"d"}), state("generator", 9, {"g"})}),
               InconsistentError, "several models");
  EXPECT_EQ(chosen({latest("tuned", 9), state("before", 2)}), "tuned");
  SavedState universal = state("global_step5_universal", 5);
  universal.kind = StateKind::universal;
  EXPECT_EQ(chosen({latest("global_step5", 5), universal}), "global_step5");
}

TEST(Choose, TagsBesideTheOneThatLatestNamesAreAgesOfIt) {
  const std::vector<SavedState> sorted =
      sorted_by_age(kPath, {latest("tag2", 5), state("tag1", 9), state("tag3", 2)});
  ASSERT_EQ(sorted.size(), 3u);
  EXPECT_EQ(sorted[0].tag, "tag3");
  EXPECT_EQ(sorted[1].tag, "tag2");
  EXPECT_EQ(sorted[2].tag, "tag1");
}

TEST(Choose, AWholeOneAmongThoseThatCannotBeRead) {
  SavedState damaged = state("global_step422", std::nullopt);
  damaged.damage = "the file is empty";
  const ChosenState choice = choose(kPath, {state("global_step418", 418), damaged});
  EXPECT_EQ(choice.state.tag, "global_step418");
  EXPECT_NE(choice.note.find("global_step422: the file is empty"), std::string::npos);
  EXPECT_ERROR(chosen({damaged, damaged}), InconsistentError, "none of which can be read");
}

TEST(Choose, TheOneOfAModel) {
  Folders folders;
  const std::vector<SavedState> states{state("step_3/actor", 3), state("step_3/critic", 3),
                                       state("step_4/actor", 4), state("step_4/critic", 4)};
  EXPECT_EQ(chosen(of_model(folders, kPath, states, "actor").states), "step_4/actor");
  EXPECT_EQ(chosen(of_model(folders, kPath, states, "critic").states), "step_4/critic");
  EXPECT_ERROR(of_model(folders, kPath, states, "reward"), UsageError, "is called 'reward'");
}

TEST(Choose, OlderOnesAreKeptForWhenItIsDamaged) {
  const ChosenState choice =
      choose(kPath, {state("step1", 1), state("step3", 3), state("step2", 2)});
  ASSERT_EQ(choice.older.size(), 2u);
  EXPECT_EQ(choice.older[0].tag, "step2");
  EXPECT_EQ(choice.older[1].tag, "step1");
}

TEST(Choose, NamesOfLatestAloneAreNoReasonToOpenOthers) {
  EXPECT_TRUE(is_told_by_names(kPath, {latest("global_step5", {}), state("global_step9", {})}));
  EXPECT_FALSE(
      is_told_by_names(kPath, {latest("pytorch_model_1", {}), state("pytorch_model", {})}));
  EXPECT_FALSE(is_told_by_names(kPath, {state("step1", {}), state("step2", {})}));
}

}  // namespace
}  // namespace dsckpt
