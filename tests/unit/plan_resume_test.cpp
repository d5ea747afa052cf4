// Split checkpoints that are not loaded into running engines. The loads are tested
// with engines (oracle/live_split_test.py).
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

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

TEST(ResumePlans, RefuseExpertsAsReshardDoes) {
  EXPECT_ERROR(
      ResumePlans(split("autoep2_dp2_z1_bf16"), {.dp = 1, .tp = 2, .stage = 1}), UnsupportedError,
      "has experts of AutoEP, whose tensor-parallel ranks and pipeline stages stay as they "
      "are");
  EXPECT_ERROR(ResumePlans(split("autoep2_autotp2_z1_fp32"), {.dp = 2, .tp = 2, .stage = 1}),
               UnsupportedError,
               "AutoEP is folded with tensor parallelism, which is not resharded");
}

TEST(ResumePlans, DoNotMakePipelinesOfOtherModels) {
  EXPECT_ERROR(ResumePlans(split("pp2_dp1_z0_fp32"), EngineFacts{}), InconsistentError,
               "is of a pipeline, and the engine is none");
  EXPECT_ERROR(ResumePlans(split("autotp2_dp1_z0_fp32"), {.stages = {0, 2}}), InconsistentError,
               "is not of a pipeline, and the engine is one");
}

}  // namespace
}  // namespace dsckpt
