// Stage 3: hand-made files of two ranks, in the places that DeepSpeed's rules say. Each parameter
// is cut by itself into pieces of ceil(numel / ranks) (partition_parameters.py). A rank strings its
// pieces together and cuts the string into sub-groups (stage3.py).
#include <gtest/gtest.h>

#include <string>

#include "checkpoint/model_states.h"
#include "checkpoint/zero_world.h"
#include "support/expect_error.h"
#include "support/hand_made_checkpoint.h"

namespace dsckpt {
namespace {

using test::Floats;
using test::Names;

class Zero3 : public test::HandMadeCheckpoint {
 protected:
  void write_model(int rank, const std::string& param_shapes) {
    write("zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_model_states.pt",
          R"({"module": {}, "param_shapes": )" + param_shapes + "}");
  }

  // `flat`: the tensors of fp32_flat_groups.
  void write_optim(int rank, const std::string& flat, const std::string& inner = "{}") {
    write("zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_optim_states.pt",
          R"({"optimizer_state_dict": {"zero_stage": 3, "partition_count": 2,
              "fp32_flat_groups": [)" +
              flat + R"(], "optimizer_state_dict": )" + inner + "}}");
  }

  // a has 5 elements, pieces of 3: the last element of rank 1's is padding. b has pieces of 2.
  void write_two_sub_groups() {
    for (const int rank : {0, 1}) write_model(rank, R"([{"a": [5]}, {"b": [2, 2]}])");
    const char* kInner = R"({
        "state": {"0": {"step": 4, "exp_avg": {"tensor": [3], "first": 100}},
                  "1": {"step": 4, "exp_avg": {"tensor": [2], "first": 200}}},
        "param_groups": [{"lr": 0.5, "params": [0]}, {"lr": 0.25, "params": [1]}]})";
    write_optim(0, R"({"tensor": [3], "first": 10}, {"tensor": [2], "first": 30})", kInner);
    write_optim(1, R"({"tensor": [3], "first": 20}, {"tensor": [2], "first": 40})", kInner);
  }
};

TEST_F(Zero3, GathersThePiecesOfAllRanksWithoutThePadding) {
  write_two_sub_groups();
  const Checkpoint checkpoint = open();
  EXPECT_EQ(checkpoint.facts().zero_stage, 3);
  EXPECT_EQ(names_of(checkpoint), (Names{"a", "b"}));
  EXPECT_EQ(weight(checkpoint, "a"), (Floats{10, 11, 12, 20, 21}));
  EXPECT_EQ(checkpoint.find("b")->weight.shape(), (Shape{2, 2}));
  EXPECT_EQ(weight(checkpoint, "b"), (Floats{30, 31, 40, 41}));
}

TEST_F(Zero3, CutsStatesAsTheMasters) {
  write_two_sub_groups();
  const Checkpoint checkpoint = open();
  EXPECT_EQ(state(checkpoint, "a", 0), (Floats{100, 101, 102, 100, 101}));
  EXPECT_EQ(state(checkpoint, "b", 0), (Floats{200, 201, 200, 201}));
}

TEST_F(Zero3, HasAGroupForTheSubGroupsThatItLists) {
  write_two_sub_groups();
  const Checkpoint checkpoint = open();
  ASSERT_EQ(checkpoint.groups().size(), 2u);
  EXPECT_EQ(checkpoint.groups()[0].params, Names{"a"});
  EXPECT_EQ(checkpoint.groups()[1].params, Names{"b"});
  EXPECT_EQ(checkpoint.groups()[1].settings.value.at("lr").as_real(), 0.25);
}

// Pieces of 3 and 2 in sub-groups of 4 and 1: b lies across the border.
TEST_F(Zero3, ReadsAParameterThatLiesAcrossSubGroups) {
  for (const int rank : {0, 1}) write_model(rank, R"([{"a": [5], "b": [4]}])");
  write_optim(0, R"({"tensor": [4], "first": 10}, {"tensor": [1], "first": 30})");
  write_optim(1, R"({"tensor": [4], "first": 20}, {"tensor": [1], "first": 40})");
  const Checkpoint checkpoint = open({});
  EXPECT_EQ(weight(checkpoint, "a"), (Floats{10, 11, 12, 20, 21}));
  EXPECT_EQ(weight(checkpoint, "b"), (Floats{13, 30, 23, 40}));
}

TEST_F(Zero3, RefusesElementsThatAreTooFew) {
  for (const int rank : {0, 1}) {
    write_model(rank, R"([{"a": [5]}, {"b": [2, 2]}])");
    write_optim(rank, R"({"tensor": [2]}, {"tensor": [2]})");
  }
  EXPECT_ERROR(open({}), InconsistentError, "its pieces of the parameters need 5");
}

TEST_F(Zero3, RefusesElementsThatAreTooMany) {
  for (const int rank : {0, 1}) {
    write_model(rank, R"([{"a": [5]}, {"b": [2, 2]}])");
    write_optim(rank, R"({"tensor": [3]}, {"tensor": [3]})");
  }
  EXPECT_ERROR(open({}), InconsistentError, "its pieces of the parameters need 5");
}

TEST_F(Zero3, RefusesRanksThatAreCutOtherwise) {
  for (const int rank : {0, 1}) write_model(rank, R"([{"a": [5], "b": [4]}])");
  write_optim(0, R"({"tensor": [4]}, {"tensor": [1]})");
  write_optim(1, R"({"tensor": [3]}, {"tensor": [2]})");
  EXPECT_ERROR(open({}), InconsistentError, "is cut otherwise than in");
}

TEST_F(Zero3, RefusesRanksOfOtherParameters) {
  write_two_sub_groups();
  write_model(1, R"([{"a": [6]}, {"b": [2, 2]}])");
  EXPECT_ERROR(open(), InconsistentError, "the ranks were not saved at the same step");
}

TEST_F(Zero3, KnowsHowMuchOfASubGroupARankHas) {
  write_two_sub_groups();
  const auto& all = shards();  // model states, then optimizer states
  const std::vector<SubGroupSize> sizes = sub_group_sizes(ModelStates(all[0]), all[2], 2);
  ASSERT_EQ(sizes.size(), 2u);
  EXPECT_EQ(sizes[0].params, 1u);
  EXPECT_EQ(sizes[0].numel, 3u);
  EXPECT_EQ(sizes[1].numel, 2u);
}

// A frozen parameter of which releases before 0.9.2 kept nothing but a placeholder.
TEST_F(Zero3, NotesParametersThatNoFileHolds) {
  write_two_sub_groups();
  for (const int rank : {0, 1}) {
    write("zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_model_states.pt",
          R"({"module": {"lost": {"tensor": [0]}}, "param_shapes": [{"a": [5]}, {"b": [2, 2]}]})");
  }
  const Checkpoint checkpoint = open();
  ASSERT_EQ(checkpoint.notes().size(), 1u);
  EXPECT_NE(checkpoint.notes()[0].find("'lost' is a parameter of the model"), std::string::npos);
}

}  // namespace
}  // namespace dsckpt
