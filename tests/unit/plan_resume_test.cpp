// Split checkpoints that are not loaded into running engines of other grids. The loads are tested
// with engines (oracle/live_split_test.py).
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "dsckpt/checkpoint.h"
#include "dsckpt/error.h"
#include "dsckpt/resume.h"
#include "support/expect_error.h"

namespace dsckpt {
namespace {

Source split(const std::string& name) {
  return Source::open(std::filesystem::path(DSCKPT_TESTDATA) / "model_parallel" / name / "ckpt",
                      {.optimizer_states = true, .cut_anew = true});
}

// The trained tensors of a rank, of no matter which shape.
std::vector<EngineTensor> tensors(const std::vector<std::string>& names) {
  std::vector<EngineTensor> all;
  for (const std::string& name : names) all.push_back({.name = name});
  return all;
}

TEST(ResumePlans, DoNotCutExpertsForOtherTensorParallelRanks) {
  const Source source = split("moe_ep2_tp2_dp2_z2_bf16");
  const EngineFacts engine{.dp = 2, .tp = 1, .stage = 2};
  EXPECT_ERROR(
      ResumePlans(source, engine), UnsupportedError,
      "and the engine has 1 pipeline stage and 1 tensor-parallel rank: it is not cut anew");
}

TEST(ResumePlans, SayWhichLayersAreOnOtherStages) {
  const Source source = split("pp2_dp1_z0_fp32");
  EngineFacts engine{.stages = {0, 2}, .mp_rank = 0};
  engine.tensors = tensors({"tied_modules.embed.weight", "1.fc1.weight"});
  EXPECT_ERROR(
      ResumePlans(source, engine), UnsupportedError,
      "has layers 1, 2 in pipeline stage 0, where the engine has layer 1: it is not cut anew");
  engine.mp_rank = 1;
  engine.tensors = tensors({"2.fc1.weight", "4.fc1.weight", "5.weight"});
  EXPECT_ERROR(ResumePlans(source, engine), UnsupportedError,
               "has layers 4, 5 in pipeline stage 1, where the engine has layers 2, 4, 5");
}

}  // namespace
}  // namespace dsckpt
