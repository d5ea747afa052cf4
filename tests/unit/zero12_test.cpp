// Stages 1 and 2: flat groups of hand-made files. DeepSpeed's rules say the places
// (stage_1_and_2.py: partitions of groups that are padded to a multiple of twice the ranks).
#include <gtest/gtest.h>

#include <string>

#include "support/expect_error.h"
#include "support/hand_made_checkpoint.h"

namespace dsckpt {
namespace {

using test::Floats;
using test::Names;

constexpr const char* kModel = "mp_rank_00_model_states.pt";

std::string optim_of(int rank) {
  return "zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_optim_states.pt";
}

class Zero12 : public test::HandMadeCheckpoint {
 protected:
  // `shapes`: a dict for each group. `rest`: further entries, each with a comma before it.
  void write_model(const std::string& shapes, const std::string& rest = {}) {
    write(kModel, R"({"module": {}, "param_shapes": [)" + shapes + "]" + rest + "}");
  }

  // `masters` and `rest` of optimizer_state_dict, of two ranks.
  void write_optim(int rank, const std::string& masters, const std::string& rest) {
    write(optim_of(rank), R"({"optimizer_state_dict": {"zero_stage": 2, "partition_count": [2],
        "single_partition_of_fp32_groups": [)" +
                              masters + "]" + rest + "}}");
  }

  // Seven elements, padded to 8, in partitions of 4: a reaches into rank 1, which has one element
  // of padding.
  void write_two_ranks(const std::string& rest_of_model = {}) {
    write_model(R"({"a": [5], "b": [2]})", rest_of_model);
    write_optim(0, R"({"tensor": [4], "first": 10})", kRank0);
    write_optim(1, R"({"tensor": [3], "first": 20})", kRank1);
  }

  static constexpr const char* kRank0 = R"(, "group_paddings": [0],
      "base_optimizer_state": {"state": {"0": {"step": 3, "exp_avg": {"tensor": [4], "first": 30}}},
                               "param_groups": [{"lr": 0.5, "params": [0]}]},
      "param_slice_mappings": [{"a": {"object": {"numel": 4, "start": 0}}}])";
  static constexpr const char* kRank1 = R"(, "group_paddings": [1],
      "base_optimizer_state": {"state": {"0": {"step": 3, "exp_avg": {"tensor": [4], "first": 40}}},
                               "param_groups": [{"lr": 0.5, "params": [0]}]},
      "param_slice_mappings": [{"a": {"object": {"numel": 1, "start": 0}},
                                "b": {"object": {"numel": 2, "start": 1}}}])";
};

TEST_F(Zero12, PutsParametersTogetherAcrossPartitions) {
  write_two_ranks();
  const Checkpoint checkpoint = open();
  EXPECT_EQ(checkpoint.facts().optimizer_wrapper, EngineWrapper::zero12);
  EXPECT_EQ(checkpoint.facts().zero_stage, 2);
  EXPECT_EQ(checkpoint.facts().mesh.dp, 2u);
  EXPECT_EQ(names_of(checkpoint), (Names{"a", "b"}));
  EXPECT_EQ(weight(checkpoint, "a"), (Floats{10, 11, 12, 13, 20}));
  EXPECT_EQ(weight(checkpoint, "b"), (Floats{21, 22}));
}

// The padding of states stays in the file.
TEST_F(Zero12, CutsStatesAsTheMasters) {
  write_two_ranks();
  const Checkpoint checkpoint = open();
  EXPECT_EQ(checkpoint.find("a")->states.at(0).key, "exp_avg");
  EXPECT_EQ(state(checkpoint, "a", 0), (Floats{30, 31, 32, 33, 40}));
  EXPECT_EQ(state(checkpoint, "b", 0), (Floats{41, 42}));
  const ShardValue& step = checkpoint.find("b")->step;
  EXPECT_EQ(step.archive->scalar(step.value), 3.0);
}

TEST_F(Zero12, HasItsGroupsWithTheirSettings) {
  write_two_ranks();
  const Checkpoint checkpoint = open();
  ASSERT_EQ(checkpoint.groups().size(), 1u);
  EXPECT_EQ(checkpoint.groups()[0].params, (Names{"a", "b"}));
  EXPECT_EQ(checkpoint.groups()[0].settings.value.at("lr").as_real(), 0.5);
}

// One element on two ranks: partitions of 2, and rank 1 has nothing but padding.
TEST_F(Zero12, ReadsARankOfNothingButPadding) {
  write_model(R"({"a": [1]})");
  write_optim(0, R"({"tensor": [1], "first": 5})", R"(, "group_paddings": [1])");
  write_optim(1, R"({"tensor": [0]})", R"(, "group_paddings": [2])");
  EXPECT_EQ(weight(open(), "a"), Floats{5});
}

// All three on the last rank, from which t[:2 - 3] has cut one of two.
TEST_F(Zero12, ReadsThePaddingOfReleasesBefore0164) {
  write_model(R"({"a": [1]})");
  write_optim(0, R"({"tensor": [2], "first": 5})", R"(, "group_paddings": [0])");
  write_optim(1, R"({"tensor": [1]})", R"(, "group_paddings": [3])");
  EXPECT_EQ(weight(open(), "a"), Floats{5});
}

TEST_F(Zero12, ReadsThePaddingThatBf16OptimizerKeeps) {
  write_model(R"({"a": [1]})");
  for (const int rank : {0, 1}) {
    write("bf16_" + optim_of(rank), R"({"optimizer_state_dict": {"partition_count": [2],
        "group_paddings": [)" + std::string(rank == 0 ? "0" : "3") +
                                        R"(],
        "single_partition_of_fp32_groups": [{"tensor": [2], "first": 5}]}})");
  }
  const Checkpoint checkpoint = open();
  EXPECT_EQ(checkpoint.facts().optimizer_wrapper, EngineWrapper::bf16_optimizer);
  EXPECT_EQ(checkpoint.facts().zero_stage, 1);
  EXPECT_EQ(weight(checkpoint, "a"), Floats{5});
}

TEST_F(Zero12, RefusesThePaddingOfAnotherRank) {
  write_two_ranks();
  std::string other = kRank1;
  other.replace(other.find("[1]"), 3, "[0]");
  write_optim(1, R"({"tensor": [3], "first": 20})", other);
  EXPECT_ERROR(open(), InconsistentError, "rank 1 has 1 element of padding");
}

TEST_F(Zero12, RefusesElementsThatAreTooFewOrTooMany) {
  write_two_ranks();
  for (const char* masters : {R"({"tensor": [2]})", R"({"tensor": [4]})"}) {
    write_optim(1, masters, kRank1);
    EXPECT_ERROR(open(), InconsistentError, "the parameters of this rank need 3");
  }
}

// Padding is less than twice the ranks.
TEST_F(Zero12, RefusesElementsThatAreNeitherParameterNorPadding) {
  write_model(R"({"a": [3]})");
  for (const int rank : {0, 1}) {
    write_optim(rank, R"({"tensor": [4]})", "");
  }
  EXPECT_ERROR(open(), InconsistentError, "5 elements after the last parameter");
}

TEST_F(Zero12, RefusesAMappingOfAnotherRank) {
  write_two_ranks(R"(, "ds_config": {})");
  std::string other = kRank1;
  other.replace(other.find(R"("start": 1)"), 10, R"("start": 2)");
  write_optim(1, R"({"tensor": [3], "first": 20})", other);
  EXPECT_ERROR(open(), InconsistentError, "the file maps this parameter elsewhere");
}

// Elements that follow a parameter to align the next: a, one more, b.
TEST_F(Zero12, SkipsTheAlignmentBetweenParameters) {
  write_model(R"({"a": [3], "b": [2]})");
  const char* kPaddings = R"(, "param_alignment_paddings": [[1, 0]])";
  write_optim(0, R"({"tensor": [4], "first": 10})", kPaddings);
  write_optim(1, R"({"tensor": [2], "first": 20})", kPaddings);
  const Checkpoint checkpoint = open();
  EXPECT_EQ(weight(checkpoint, "a"), (Floats{10, 11, 12}));
  EXPECT_EQ(weight(checkpoint, "b"), (Floats{20, 21}));
}

// _round_robin_reorder deals parameters out to the ranks: of x, y, z the vector has x, z, y.
class RoundRobin : public Zero12 {
 protected:
  void write_three(const std::string& config) {
    write_model(R"({"x": [2], "z": [2], "y": [4]})",
                config.empty() ? "" : R"(, "ds_config": )" + config);
    // _link_all_hp_params maps x, y, z, the order of the optimizer.
    write_optim(0, R"({"tensor": [4], "first": 10})",
                mapping(R"("x": {"object": {"numel": 2, "start": 0}},
                           "y": {"object": {"numel": 2, "start": 2}})"));
    write_optim(1, R"({"tensor": [4], "first": 20})",
                mapping(R"("y": {"object": {"numel": 2, "start": 0}},
                           "z": {"object": {"numel": 2, "start": 2}})"));
  }

  static std::string mapping(const std::string& entries) {
    return R"(, "param_slice_mappings": [{)" + entries + "}]";
  }

  void expect_round_robin(const Checkpoint& checkpoint) {
    EXPECT_TRUE(checkpoint.facts().round_robin);
    EXPECT_EQ(weight(checkpoint, "z"), (Floats{12, 13}));
    EXPECT_EQ(weight(checkpoint, "y"), (Floats{20, 21, 22, 23}));
    ASSERT_EQ(checkpoint.groups().size(), 1u);
    EXPECT_EQ(checkpoint.groups()[0].params, (Names{"x", "y", "z"}));
  }
};

TEST_F(RoundRobin, FollowsTheVectorAndKnowsTheOptimizersOrder) {
  write_three(R"({"zero_optimization": {"round_robin_gradients": true}})");
  expect_round_robin(open());
}

TEST_F(RoundRobin, IsToldByTheMappingWhereNoConfigurationIs) {
  write_three("");
  expect_round_robin(open());
}

TEST_F(RoundRobin, IsToldByTheMappingWhereTheConfigurationIsAPath) {
  write_three(R"("ds_config.json")");
  expect_round_robin(open());
}

TEST_F(RoundRobin, IsNotTakenFromAMappingThatFits) {
  write_two_ranks();
  EXPECT_FALSE(open().facts().round_robin);
}

TEST_F(RoundRobin, IsRefusedWhereTheConfigurationSaysOtherwise) {
  write_three(R"({"zero_optimization": {"round_robin_gradients": false}})");
  EXPECT_ERROR(open(), InconsistentError, "the file maps this parameter elsewhere");
}

// Four ranks in two expert-parallel ones, which have an expert each. Common parameters are cut over
// four, an expert over its two ranks. These are 0 and 2, or 0 and 1 where data parallelism comes
// first (utils/groups.py _get_expert_parallel_ranks).
class ExpertGroups : public Zero12 {
 protected:
  void write_four(const std::string& config) {
    write_model(R"({"all": [8]}, {"l.deepspeed_experts.0.w": [4]})",
                config.empty() ? "" : R"(, "ds_config": )" + config);
    for (int rank = 0; rank < 4; ++rank) {
      const std::string first = std::to_string(10 * rank);
      write(optim_of(rank),
            R"({"optimizer_state_dict": {"zero_stage": 2, "partition_count": [4, 2],
                "base_optimizer_state": {"state": {}, "param_groups": [
                    {"params": [0]}, {"moe": true, "params": [1]}]},
                "single_partition_of_fp32_groups": [{"tensor": [2], "first": )" +
                first + R"(}, {"tensor": [2], "first": )" + first + "}]}}");
    }
  }
};

TEST_F(ExpertGroups, AreSharedByEverySecondRank) {
  write_four("{}");
  const Checkpoint checkpoint = open();
  EXPECT_EQ(weight(checkpoint, "all"), (Floats{0, 1, 10, 11, 20, 21, 30, 31}));
  EXPECT_EQ(weight(checkpoint, "l.deepspeed_experts.0.w"), (Floats{0, 1, 20, 21}));
  EXPECT_EQ(weight(checkpoint, "l.deepspeed_experts.1.w"), (Floats{10, 11, 30, 31}));
  ASSERT_EQ(checkpoint.groups().size(), 2u);
  EXPECT_EQ(checkpoint.groups()[0].ep_size, 1u);
  EXPECT_EQ(checkpoint.groups()[1].ep_size, 2u);
}

TEST_F(ExpertGroups, AreSharedByNeighboursWhereDataParallelismComesFirst) {
  write_four(R"({"use_data_before_expert_parallelism": true})");
  const Checkpoint checkpoint = open();
  EXPECT_EQ(weight(checkpoint, "l.deepspeed_experts.0.w"), (Floats{0, 1, 10, 11}));
  EXPECT_EQ(weight(checkpoint, "l.deepspeed_experts.1.w"), (Floats{20, 21, 30, 31}));
}

TEST_F(ExpertGroups, AreRefusedWhereNoConfigurationSaysWhichComesFirst) {
  write_four(R"("ds_config.json")");
  EXPECT_ERROR(open(), UnsupportedError, "use_data_before_expert_parallelism");
}

}  // namespace
}  // namespace dsckpt
